#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a header with the front end of LibTorch once for each of its waits, events and calls
of record_stream(), which is missing there.

usage: device_mutants.py INCLUDE_FOLDER HEADER

Each copy has a namespace of its own, thinwire::mutant_K; mutant_0 is unchanged. The macro
THINWIRE_MUTANTS calls its argument with the namespace and the name of each, and the Part of
the front end that it concerns.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

FILES = (
    "staging.h",
    "module_memory.h",
    "module_buffers.h",
    "module_others.h",
    "gradient_copies.h",
    "staged_gradients.h",
    "engine_parts.h",
    "host_bytes.h",
    "host_checkpoint.h",
    "engine.h",
    "host_group.h",
    "host_gradients.h",
    "host_engine.h",
)
STREAM_WAITS = "    stream_->wait(recorded(current()));\n"
ON_STREAM = "    {\n      const c10::StreamGuard on(*stream_);\n"

# File, text that occurs in it once, and its replacement.
MUTANTS: dict[str, tuple[str, str, str]] = {
    "nothing is missing": ("", "", ""),
    "the copy does not wait for the gradient": (
        "staging.h",
        f"{STREAM_WAITS}{ON_STREAM}      view",
        f"{ON_STREAM}      view",
    ),
    "the gradient is freed too early": (
        "staging.h",
        "    tensor.record_stream(*stream_);\n",
        "",
    ),
    "parameters are overwritten while they are read": (
        "staging.h",
        f"{STREAM_WAITS}{ON_STREAM}      copy(",
        f"{ON_STREAM}      copy(",
    ),
    "copies do not wait for another stream than the default one": (
        "staging.h",
        "    return guard_.getStream(device_);\n",
        "    return guard_.getDefaultStream(device_);\n",
    ),
    "the forward does not wait for parameters": (
        "staging.h",
        "    current().wait(recorded(*stream_));\n",
        "",
    ),
    "nobody waits for copies of parameters": (
        "staging.h",
        "    current().wait(recorded(*stream_));\n    is_quiet_ = false;\n",
        "    current().wait(recorded(*stream_));\n",
    ),
    "a step without an engine does not wait for gradients": (
        "module_memory.h",
        "    staging_->wait();\n    for (",
        "    for (",
    ),
    "arrays are written while they are sent": (
        "module_memory.h",
        "    if (staging_) staging_->wait();\n",
        "",
    ),
    "a parameter is sent before it is final": (
        "module_memory.h",
        "      if (*missing_[i] > 0) continue;\n      missing_[i].reset();\n",
        "",
    ),
    "parameters of an unfinished bucket stay behind": (
        "module_memory.h",
        "      if (missing_[i]) numbers.push_back(i);\n",
        "",
    ),
    "a window ends before gradients have arrived": (
        "staged_gradients.h",
        "    if (is_boundary_ || !copies_.empty()) memory_.staging()->wait();\n",
        "",
    ),
    "a gradient is handed over before it has arrived": (
        "gradient_copies.h",
        "      if (!all_have_arrived && first.event && !first.event->query()) return;\n",
        "",
    ),
    "a cancelled backward writes later": (
        "gradient_copies.h",
        "    memory_.staging()->wait();\n    pending_.clear();\n",
        "    pending_.clear();\n",
    ),
    "two gradients in one backward": (
        "gradient_copies.h",
        "    if (taken_[index])\n",
        "    if (false)\n",
    ),
    "a host's sum does not wait for the gradient": (
        "host_gradients.h",
        "      found.event->block(now);\n",
        "",
    ),
    "a gradient of a host's sum is freed too early": (
        "host_gradients.h",
        "      found.tensor.record_stream(now);\n",
        "",
    ),
    "the leader's copy does not wait for the sum": (
        "host_group.h",
        "      sums_.back()->wait();\n",
        "",
    ),
    "the leader steps before sums have arrived": (
        "host_gradients.h",
        "    memory_.staging()->wait();\n    copies_->hand_over(true);\n",
        "    copies_->hand_over(true);\n",
    ),
    "followers do not wait for parameters": (
        "host_group.h",
        "group_->broadcast(tensors, options)->wait();",
        "group_->broadcast(tensors, options);",
    ),
}


def mutated(texts: dict[str, str], number: int, name: str) -> str:
    """Returns all files as one namespace, without their includes."""
    file, old, new = MUTANTS[name]
    copies = dict(texts)
    if file:
        found = copies[file].count(old)
        if found != 1:
            sys.exit(f"device_mutants.py: {file} has {old!r} {found} times ({name})")
        copies[file] = copies[file].replace(old, new)
    text = "\n".join(copies[name] for name in FILES)
    text = re.sub(r"^#(include|pragma) .*\n", "", text, flags=re.MULTILINE)
    text = text.replace("thinwire::torch", f"thinwire::mutant_{number}")
    return re.sub(r"(?<![:\w])torch::", f"mutant_{number}::", text)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder = Path(sys.argv[1]) / "thinwire/torch"
    texts = {name: (folder / name).read_text() for name in FILES}
    includes = {
        line
        for text in texts.values()
        for line in re.findall(r"^#include .*$", text, flags=re.MULTILINE)
        if "thinwire/torch/" not in line
    }
    lines = ["#pragma once", *sorted(includes)]
    lines += [mutated(texts, k, name) for k, name in enumerate(MUTANTS)]
    calls = []
    for k, (name, (file, _, _)) in enumerate(MUTANTS.items()):
        parts = "all" if not file else "led" if "host_" in file else "alone"
        calls.append(f'  call(mutant_{k}, "{name}", Part::{parts})')
    lines += ["#define THINWIRE_MUTANTS(call) \\", " \\\n".join(calls), ""]
    Path(sys.argv[2]).write_text("\n".join(lines))


if __name__ == "__main__":
    main()

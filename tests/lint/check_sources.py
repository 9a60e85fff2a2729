#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the C++ sources to the rules that a compiler does not check.

usage: check_sources.py [ROOT]

Prints one line per violation, "file:line: what is wrong", and exits with 1 if
there was one.
"""

import re
import sys
from pathlib import Path

# The dependency line, lowest first. A module may include itself and what stands
# on a lower level; modules on one level do not know each other.
LEVELS = (
    ("core",),
    ("comm", "kernels"),
    ("exchange",),
    ("optim",),
    ("precision",),
    ("zero",),
    ("lean", "outer"),
    ("checkpoint", "deepspeed"),
    ("config",),
    ("plan",),
    ("engine",),
    ("c", "torch"),
    ("commands",),
    ("apps", "python"),
)
LEVEL = {module: level for level, modules in enumerate(LEVELS) for module in modules}

# Headers of other people's libraries, and the folders that may include them.
VENDORS = (
    (r"mpi\.h", ("src/comm/mpi/",)),
    (r"nccl\.h", ("src/comm/nccl/",)),
    (r"hccl/.*|hccl\.h", ("src/comm/hccl/",)),
    (r"hwy/.*", ("src/kernels/cpu/",)),
    (r"cuda.*|cub/.*", ("src/kernels/cuda/", "src/core/cuda/")),
    (
        r"(torch|ATen|c10)/.*",
        ("include/thinwire/torch/", "examples/"),
    ),
    (r"CLI/.*", ("apps/", "examples/train_gpt/", "src/commands/")),
)

ENVIRONMENT_READER = "src/core/env.cpp"
# comm::run() stands for a program's main() and says why the program failed.
# Everything else that is worth a line goes to core/log.h's sink.
PRINTER = "src/comm/run.cpp"
IN_LIBRARY = (
    (
        r"(?<![.>])\b(std::)?(exit|_exit|abort|quick_exit|terminate)\s*\(",
        None,
        "library code never ends the process; throw thinwire::Error",
    ),
    (
        (
            r"\b((std::(cout|cerr|clog)|(fmt|std)::print(ln)?)\b|"
            r"(v?[fd]?printf|f?puts|f?putc|putchar|fwrite|perror|v?syslog)\s*\()"
        ),
        PRINTER,
        "library code never prints; throw thinwire::Error, or log()",
    ),
)

SOURCES = ("*.h", "*.cpp", "*.cu", "*.cuh")
# A folder that holds more is crowded, and its files belong in folders.
MOST_FILES = 30
FOLDERS = ("include", "src", "apps", "python", "examples", "tests", "bench", "fuzz")
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
LITERAL_OR_COMMENT = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL
)


def code_of(text):
    """The text with comments and literals blanked, line by line."""
    return LITERAL_OR_COMMENT.sub(
        lambda match: re.sub(r"[^\n]", " ", match.group()), text
    )


def module_of_file(path):
    """The module that a file belongs to; None outside the dependency line."""
    parts = path.split("/")
    if path.startswith("include/thinwire/") and len(parts) > 3:
        return parts[2]
    if path.startswith("src/") and len(parts) > 2:
        return parts[1]
    return parts[0] if parts[0] in ("apps", "python") else None


def module_of_header(header):
    """The module that a header of ours belongs to; None for other headers."""
    parts = header.split("/")
    if parts[0] == "thinwire" and len(parts) > 2:
        return parts[1]
    return parts[0] if len(parts) > 1 and parts[0] in LEVEL else None


def include_problems(path, bracket, header):
    """What is wrong with one include, if anything."""
    here, there = module_of_file(path), module_of_header(header)
    is_torch_front = path.startswith("include/thinwire/torch/")
    vendor = next((v for v in VENDORS if re.fullmatch(v[0], header)), None)

    # <torch/...> is LibTorch's; ours is written "thinwire/torch/...".
    if vendor and (bracket == "<" or there is None):
        in_scope = not path.startswith(("tests/", "bench/", "fuzz/"))
        if in_scope and not path.startswith(vendor[1]):
            yield f"<{header}> belongs in {' or '.join(vendor[1])} only"
    elif there is not None:
        if header.startswith("thinwire/") and there not in LEVEL:
            yield f"'{there}' is no module of the dependency line"
        elif here in LEVEL and here != there and LEVEL[there] >= LEVEL[here]:
            yield f"{here} may not include {there} ({header})"

    if path.startswith("include/") and not is_torch_front:
        ours = bracket == '"' and header.startswith("thinwire/")
        standard = bracket == "<" and re.fullmatch(r"[a-z0-9_]+|std\w+\.h", header)
        if not ours and not standard:
            yield f"a public header includes {header}, which is not promised"


def file_problems(path, text):
    """All (line, problem) of one file; `path` is relative to the root."""
    lines = text.split("\n")
    if "SPDX-License-Identifier: Apache-2.0" not in lines[0]:
        yield 1, "the first line is not the SPDX license line"
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match:
            for problem in include_problems(path, *match.groups()):
                yield number, problem
    is_library = path.startswith(("include/", "src/"))
    is_ours = is_library or path.startswith(("apps/", "examples/train_gpt/"))
    for number, line in enumerate(code_of(text).split("\n"), 1):
        reads = re.search(r"\b(secure_)?getenv\b|\benviron\b", line)
        if reads and is_ours and path != ENVIRONMENT_READER:
            yield number, f"the environment is read in {ENVIRONMENT_READER} only"
        for pattern, exempt, problem in IN_LIBRARY:
            if is_library and path != exempt and re.search(pattern, line):
                yield number, problem


def crowded_folders(root):
    """All folders under `root` that hold too many files."""
    for top in (*FOLDERS, "docs", "scripts", "cmake"):
        for folder in sorted((root / top, *(root / top).rglob("*/"))):
            name = folder.relative_to(root)
            if any(part.startswith((".", "__")) for part in name.parts):
                continue
            count = sum(path.is_file() for path in folder.glob("*"))
            if count > MOST_FILES:
                yield f"{name}: {count} files; a folder holds at most {MOST_FILES}"


def problems(root):
    """All problems under `root`, and how many files were read."""
    found, count = list(crowded_folders(root)), 0
    for folder in FOLDERS:
        for pattern in SOURCES:
            for file in sorted((root / folder).rglob(pattern)):
                path = file.relative_to(root).as_posix()
                text = file.read_text(encoding="utf-8")
                count += 1
                for line, problem in file_problems(path, text):
                    found.append(f"{path}:{line}: {problem}")
    return found, count


def main(problems, what=None):
    """Prints the problems of the root that the command line names, by default of this
    tree; returns the exit code. A tree without any of `what` has one too. Without `what`
    `problems` counts nothing."""
    default = Path(__file__).resolve().parents[2]
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    found, count = problems(root) if what else ([*problems(root)], 1)
    if count == 0:
        found.append(f"{root}: there are no {what} here")
    for line in found:
        print(line)
    if what:
        print(f"{count} {what}, {len(found)} violations", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(problems, "sources"))

# SPDX-License-Identifier: Apache-2.0
"""python -m thinwire telemetry: lines of steps become charts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ._monitors import TensorBoard
from .errors import InvalidArgument

_PHASES = {"exact": 0, "compressed": 1, "local": 2}


def to_tensorboard(path: str, directory: str) -> int:
    """Local: every number in a file of steps (thinwire.telemetry.path, or train_gpt's
    metrics.jsonl) as "thinwire/NAME" for TensorBoard; returns the number of lines. A
    phase is 0: exact, 1: compressed, 2: local. A last line that was torn is left out.

    Raises InvalidArgument naming the file and the line, Unavailable without a package
    that writes.
    """
    steps = list(_steps(path))
    charts = TensorBoard(directory)
    for step in steps:
        for name, value in _numbers(step):
            if name not in ("step", "time"):
                charts.add(f"thinwire/{name}", value, step["step"], step.get("time"))
    charts.flush()
    return len(steps)


def _steps(path: str) -> Iterator[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"cannot read the file '{path}': {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            step = json.loads(line)
        except json.JSONDecodeError:
            if number == len(lines) and not line.endswith("\n"):
                return
            step = None
        if not isinstance(step, dict) or not isinstance(step.get("step"), int):
            raise InvalidArgument(
                f"line {number} of '{path}' must be an object with a step"
            )
        yield step


def _numbers(step: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, float]]:
    for name, value in step.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{outer}{name}/")
        elif name == "phase" and value in _PHASES:
            yield outer + name, _PHASES[value]
        elif isinstance(value, (bool, int, float)) and math.isfinite(value):
            yield outer + name, float(value)

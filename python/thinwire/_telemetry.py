# SPDX-License-Identifier: Apache-2.0
"""python -m thinwire telemetry: lines of steps become charts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._event_file import EventFile
from .errors import InvalidArgument

_PHASES = {"exact": 0, "compressed": 1, "local": 2}


def to_tensorboard(paths: Sequence[str], directory: str) -> int:
    """Converts files of steps into one run for TensorBoard. Local. Returns the number
    of lines.

    Files of steps are those of thinwire.telemetry.path, and train_gpt's metrics.jsonl.
    Every number becomes "thinwire/NAME". A phase is 0 for exact, 1 for compressed and 2
    for local. A torn last line is left out. If a number occurs twice for one step, the
    last one counts. Another conversion replaces the run.

    Raises InvalidArgument naming the file and the line, and Unavailable if the
    directory cannot be written.
    """
    points: dict[tuple[int, str], tuple[float, float | None]] = {}
    lines = 0
    for path in paths:
        time = None
        for step in _steps(path):
            lines += 1
            time = step.get("time", time)
            for name, value in _numbers(step):
                if name not in ("step", "time"):
                    points[step["step"], name] = value, time
    charts = EventFile(directory, "thinwire")
    for (at, name), (value, time) in sorted(points.items()):
        charts.add(f"thinwire/{name}", value, at, time)
    charts.flush()
    return lines


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

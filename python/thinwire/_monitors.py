# SPDX-License-Identifier: Apache-2.0
"""Files with the numbers of a run, for TensorBoard or as comma-separated values."""

from __future__ import annotations

import csv
import glob
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from .errors import InvalidArgument, Unavailable


class Monitor(Protocol):
    """Receives numbers by name."""

    def add(self, name: str, value: float, at: int) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class CsvFiles:
    """CSV files as in DeepSpeed, such as DIRECTORY/Train_Samples_lr.csv, with lines
    "at,value".

    Raises Unavailable if a file cannot be written.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        with _naming("csv_monitor"):
            os.makedirs(directory, exist_ok=True)

    def add(self, name: str, value: float, at: int) -> None:
        path = os.path.join(self._directory, name.replace("/", "_") + ".csv")
        with (
            _naming("csv_monitor"),
            open(path, "a", newline="", encoding="utf-8") as file,
        ):
            rows = csv.writer(file)
            if file.tell() == 0:
                rows.writerow(["step", name.rpartition("/")[2]])
            rows.writerow([at, value])

    def flush(self) -> None:
        """Does nothing, because add() has written everything."""

    def close(self) -> None:
        """Does nothing, because no file is open."""


class TensorBoard:
    """A run in `directory`, written by torch.utils.tensorboard.

    Raises Unavailable if the package tensorboard is missing, or a file cannot be written.
    """

    def __init__(self, directory: str, suffix: str = "") -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise Unavailable(
                f"tensorboard: torch.utils.tensorboard cannot be imported ({error}): "
                "pip install tensorboard"
            ) from None
        with _naming("tensorboard"):
            self._writer = SummaryWriter(directory, filename_suffix=suffix)

    def add(self, name: str, value: float, at: int, time: float | None = None) -> None:
        """Adds a value at `at` on the axis. `time` is in Unix seconds, or None for
        now.
        """
        with _naming("tensorboard"):
            self._writer.add_scalar(name, value, at, time)

    def flush(self) -> None:
        with _naming("tensorboard"):
            self._writer.flush()

    def close(self) -> None:
        """Ends the writing thread."""
        with _naming("tensorboard"):
            self._writer.close()


@contextmanager
def _naming(section: str) -> Iterator[None]:
    """Turns an OSError into an Unavailable that names the section."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{section}: {error}") from None


_KINDS: dict[str, Callable[[str], Monitor]] = {
    "tensorboard": TensorBoard,
    "csv_monitor": CsvFiles,
}
SECTIONS = tuple(_KINDS)


def monitors_of(config: Mapping[str, Any]) -> list[Monitor]:
    """Returns the monitors of a configuration's sections "tensorboard" and
    "csv_monitor". Each writes to output_path/job_name. Local.

    Raises InvalidArgument naming the key, and Unavailable if a monitor cannot be made.
    """
    return [
        _KINDS[section](directory)
        for section in SECTIONS
        if (directory := _directory(section, config.get(section))) is not None
    ]


def _directory(section: str, given: Any) -> str | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"{section}: must be an object, got {given!r:.60}")
    values = {"enabled": False, "output_path": "", "job_name": "DeepSpeedJobName"}
    for key, value in given.items():
        if key not in values:
            raise InvalidArgument(
                f"{section}.{key}: there is no such key; there are {', '.join(values)}"
            )
        if value is None or value == "auto":
            continue
        wanted = type(values[key])
        if not isinstance(value, wanted):
            raise InvalidArgument(
                f"{section}.{key}: must be {wanted.__name__}, got {value!r:.60}"
            )
        values[key] = value
    if not values["enabled"]:
        return None
    return os.path.join(str(values["output_path"]), str(values["job_name"]))


_PHASES = {"exact": 0, "compressed": 1, "local": 2}


def to_tensorboard(paths: Sequence[str], directory: str) -> int:
    """Converts files of steps into one run for TensorBoard. Local. Returns the number
    of lines.

    Files of steps are written by thinwire.telemetry.path, or by train_gpt as
    metrics.jsonl. Every number becomes "thinwire/NAME". A phase is 0 for exact, 1 for
    compressed and 2 for local. A torn last line is left out. If a number occurs twice
    for one step, the last one counts. A later conversion replaces the run.

    Raises InvalidArgument naming the file and the line, and Unavailable if the
    directory cannot be written or the package tensorboard is missing.
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
    ours = os.path.join(glob.escape(directory), "events.out.tfevents.*thinwire")
    replaced = glob.glob(ours)
    charts = TensorBoard(directory, ".thinwire")
    for (at, name), (value, time) in sorted(points.items()):
        charts.add(f"thinwire/{name}", value, at, time)
    charts.close()
    with _naming("tensorboard"):
        for path in replaced:
            os.remove(path)
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

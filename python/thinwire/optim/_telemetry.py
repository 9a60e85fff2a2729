# SPDX-License-Identifier: Apache-2.0
"""A line per step in a file, for optimizers without an engine: docs/guide/telemetry.md."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from .._log import logger
from .._paths import path_of
from ..errors import InvalidArgument
from ..report import StepReport

Given: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
_KEYS = ("path", "every", "every_rank")


class Telemetry:
    """The lines of one rank; those that cannot be written whole are dropped."""

    def __init__(self, given: Given, rank: int) -> None:
        """Opens the file. Local. Raises InvalidArgument or TypeError naming the key."""
        values = dict(given) if isinstance(given, Mapping) else {"path": given}
        for key in values:
            if key not in _KEYS:
                raise InvalidArgument(
                    f"telemetry: must have the keys {', '.join(_KEYS)}, got '{key}'"
                )
        path, every = values.get("path"), values.get("every", 1)
        every_rank = values.get("every_rank", False)
        path = path_of("telemetry['path']", path)
        if type(every) is not int or every < 1:
            raise InvalidArgument(f"telemetry['every']: must be >= 1, got {every!r}")
        if not isinstance(every_rank, bool):
            raise TypeError(
                f"telemetry['every_rank']: must be bool, got {every_rank!r}"
            )
        self._every = every
        self._path = f"{path}.rank{rank}" if every_rank else path
        self._writes = every_rank or rank == 0
        self._has_warned = False

    def write(self, report: StepReport, steps: int, rate: float) -> None:
        if not self._writes or steps % self._every:
            return
        line = json.dumps(_line_of(report, steps, rate)) + "\n"
        try:
            _append(self._path, line.encode())
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%s cannot be written: %s; training continues, and lines are dropped "
                    "until it can",
                    self._path,
                    error.strerror,
                )


def _append(path: str, line: bytes) -> None:
    """Appends all of the line or nothing of it."""
    with open(path, "ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            written = file.write(line)
        except OSError:
            written = 0
            raise
        finally:
            if written != len(line):
                file.truncate(size)


def _line_of(report: StepReport, steps: int, rate: float) -> dict[str, Any]:
    busy = report.comm_busy_seconds
    overlap = 1.0 if busy <= 0 else 1 - report.exchange_seconds / busy
    return {
        "step": steps,
        "applied": report.applied,
        "phase": report.phase,
        "loss_scale": _number(report.loss_scale),
        **{n: v for n in ("bits", "low_rank") if (v := getattr(report, n))},
        **_of_sync(report),
        "grad_norm": _number(report.grad_norm),
        "is_estimate": report.grad_norm_is_estimate,
        "clip_factor": _number(report.clip_factor),
        "lr": _number(rate),
        "seconds": {
            "step": report.seconds,
            "wait": report.exchange_seconds,
            "comm_busy": busy,
        },
        "bytes_sent": report.bytes_sent,
        "bytes_between_hosts": report.bytes_between_hosts,
        "messages": report.messages,
        "collectives": report.collectives,
        "overlap": min(max(overlap, 0.0), 1.0),
    }


def _of_sync(report: StepReport) -> dict[str, Any]:
    if report.drift == 0:
        return {}
    return {"drift": _number(report.drift), "rho": _number(report.rho)}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None

# SPDX-License-Identifier: Apache-2.0
"""Numbers that an Engine sends to the monitors of its configuration."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from .._monitors import Monitor
from ._report import EngineReport

# DeepSpeed's names, whose axis counts samples.
_LOSS, _RATE, _SCALE = (
    f"Train/Samples/{name}" for name in ("train_loss", "lr", "loss_scale")
)
_NUMBERS = (bool, int, float)


class Monitoring:
    """A window's mean loss of this rank, and reports, if there are monitors."""

    def __init__(self, monitors: list[Monitor]) -> None:
        self._monitors = monitors
        self._losses: list[torch.Tensor] = []

    def backward(self, loss: torch.Tensor) -> None:
        if self._monitors:
            self._losses.append(loss.detach().clone())

    def forget(self) -> None:
        self._losses.clear()

    def after(self, report: EngineReport, samples: int) -> None:
        if not self._monitors:
            return
        values: dict[str, Any] = {
            _RATE: report.learning_rate,
            _SCALE: report.loss_scale,
        }
        if self._losses:
            losses = [float(loss) for loss in self._losses]
            values[_LOSS] = sum(losses) / len(losses)
        self._losses.clear()
        for field in fields(report):
            value = getattr(report, field.name)
            if isinstance(value, _NUMBERS):
                values[f"thinwire/{field.name}"] = value
        values["thinwire/compressed"] = report.phase != "exact"
        for monitor in self._monitors:
            for name, value in values.items():
                monitor.add(name, float(value), samples)
            monitor.flush()

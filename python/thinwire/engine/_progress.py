# SPDX-License-Identifier: Apache-2.0
"""Lines of the log that an Engine writes on rank 0."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from .. import _core
from .._log import logger, tell
from .._monitors import Monitor
from ..optim._notices import Notices
from ..report import EngineReport
from .leaders import Core


class Progress:
    """Logs a line every steps_per_print steps, and each notice of an optimizer once."""

    def __init__(
        self, comm: _core.Communicator, config: _core.Config, core: Core
    ) -> None:
        self._speaks = comm.rank == 0
        self._every = config.steps_per_print
        self.notices = Notices(comm)
        self._core = core
        self.notices.at_start(config, core.freeze_step)
        self._noted_loss = False

    def after(
        self, report: EngineReport, global_steps: int, rates: list[float], momenta: Any
    ) -> None:
        skipped = self._core.skipped_steps
        self.notices.after_step(
            report, report.steps, skipped, self._core.freeze_step, self._core.loss_scale
        )
        if self._speaks and self._every and global_steps % self._every == 0:
            tell(f"step={global_steps}, skipped={skipped}, lr={rates}, mom={momenta}")

    def note_narrow_loss(self, dtype: torch.dtype) -> None:
        if self._speaks and not self._noted_loss:
            logger.info(
                "the loss is %s and is widened to float32 before it is scaled; compute it "
                "from logits.float(), which keeps its small differences",
                str(dtype).removeprefix("torch."),
            )
        self._noted_loss = True


# Names from DeepSpeed, where the x axis counts samples.
_LOSS, _RATE, _SCALE = (
    f"Train/Samples/{name}" for name in ("train_loss", "lr", "loss_scale")
)
_NUMBERS = (bool, int, float)


class Monitoring:
    """Passes each report to the monitors, with this rank's mean loss since the last
    report.
    """

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

    def close(self) -> None:
        for monitor in self._monitors:
            monitor.close()
        self._monitors.clear()

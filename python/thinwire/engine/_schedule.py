# SPDX-License-Identifier: Apache-2.0
"""`engine.lr_scheduler`: the configuration's schedule, seen as a scheduler."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ..errors import FailedPrecondition


class ConfigSchedule:
    """Learning rates as the configuration has them; engine.step() advances it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def get_last_lr(self) -> list[float]:
        """Returns the rates of the next step, one per group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    get_lr = get_last_lr

    def step(self, *_: Any) -> NoReturn:
        """Raises FailedPrecondition: engine.step() advances the schedule."""
        raise FailedPrecondition(
            "engine.step() advances the configuration's schedule: remove "
            "lr_scheduler.step()"
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns an empty dict: the engine has the number of applied steps."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing: there is nothing to load."""

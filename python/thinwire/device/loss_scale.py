# SPDX-License-Identifier: Apache-2.0
"""The dynamic loss scale of fp16 parameters: arXiv:1710.03740, and docs/algorithms/
mixed-precision.md for its rules."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import CorruptCheckpoint, NonFinite
from .model import Model, Report
from .states import Adoption, Saved


class LossScaler:
    """Local and deterministic: ranks that report the same overflows have the same scale.

    Attributes:
        scale: What the loss is multiplied by before the next backward.
    """

    def __init__(self, options: Any) -> None:
        self._options = options
        self.scale = float(options.initial_scale)
        self._overflows_left = options.hysteresis
        self._steps = 0
        self._last_overflow = -1

    @property
    def is_last_chance(self) -> bool:
        """Another overflow ends training."""
        options = self._options
        at_minimum = options.dynamic and self._overflows_left == 1
        at_minimum = at_minimum and self.scale == options.min_scale
        return bool(at_minimum and options.at_minimum.name == "stop")

    def update(self, overflow: bool) -> None:
        """After every step."""
        if self._options.dynamic:
            self._adapt(overflow)
        self._steps += 1

    def _adapt(self, overflow: bool) -> None:
        options = self._options
        if overflow:
            if self._overflows_left == 1:
                self.scale = max(self.scale / 2, options.min_scale)
            else:
                self._overflows_left -= 1
            self._last_overflow = self._steps
            return
        if options.consecutive_hysteresis:
            self._overflows_left = options.hysteresis
        stable = self._steps - self._last_overflow - 1
        if stable > 0 and stable % options.window == 0:
            self._overflows_left = options.hysteresis
            self.scale = min(self.scale * 2, options.max_scale)

    def add_to(self, state: dict[str, Any]) -> None:
        state["loss_scale"] = self.scale
        state["loss_scale_overflows_left"] = self._overflows_left
        state["loss_scale_steps"] = self._steps
        state["loss_scale_last_overflow"] = self._last_overflow

    def read(self, saved: Saved) -> Adoption:
        """The options of now hold: a scale that they exclude becomes the nearest."""
        options = self._options
        scale, left = (
            saved.real("loss_scale"),
            saved.integer("loss_scale_overflows_left"),
        )
        steps, last = (
            saved.integer("loss_scale_steps"),
            saved.integer("loss_scale_last_overflow"),
        )
        if not 0 < scale < float("inf") or not -1 <= last < max(steps, 0):
            raise CorruptCheckpoint(
                f"saved loss scale {scale} at step {steps} with its last overflow at {last} is "
                "impossible"
            )

        def adopt() -> None:
            if not options.dynamic:
                return
            self.scale = min(max(scale, options.min_scale), options.max_scale)
            self._overflows_left = min(max(left, 1), options.hysteresis)
            self._steps, self._last_overflow = steps, last

        return adopt

    def stop(
        self, model: Model, grads: torch.Tensor, report: Report, last_step: int
    ) -> None:
        """Collective: raises NonFinite on all ranks, saying where. `grads`: as they came."""
        is_finite = torch.isfinite(grads).all(1)
        bad = model.rows.parameter[~is_finite].tolist()
        own = torch.tensor([min(bad, default=-1)], device=model.rows.device)
        ranks = model.exchange.all_gather(own).wait().view(-1).tolist()
        rank = report.nonfinite_rank
        place = "in the sum over all ranks"
        if rank >= 0 and ranks[rank] >= 0:
            place = f"first in '{model.rows.names[ranks[rank]]}' on rank {rank}"
        raise NonFinite(
            f"the loss scale is at its minimum of {self._options.min_scale:g} and gradients are "
            f"still not finite, {place}; the last good step was {last_step}"
        )

# SPDX-License-Identifier: Apache-2.0
"""1-bit Adam's and 1-bit LAMB's two stages: exact steps, then compressed ones over a variance
that is frozen."""

from __future__ import annotations

from abc import abstractmethod

from .freeze import Freeze
from .lowbit import LowBitOptimizer
from .model import Model, StepInput


class TwoStageOptimizer(LowBitOptimizer):
    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.freeze = Freeze(model)

    @property
    def phase(self) -> str:
        return self.freeze.phase

    def take_step(self, step: StepInput) -> None:
        if self.freeze.is_frozen:
            self._compressed_step(step)
        else:
            self._warm_up(step)
        if step.report.applied:
            self.verify(step.params, f"frozen_at {self.freeze.at}")

    @abstractmethod
    def _warm_up(self, step: StepInput) -> None:
        """An exact step; the last one freezes."""

    @abstractmethod
    def _compressed_step(self, step: StepInput) -> None: ...

# SPDX-License-Identifier: Apache-2.0
"""Exact data parallelism: AdamW and LAMB, docs/algorithms/exact.md."""

from __future__ import annotations

from .adam import adam_step
from .base import DeviceOptimizer
from .gradients import (
    FirstAgreements,
    exact_average,
    find_nonfinite,
    sum_of_squares,
)
from .lamb import TrustRatio, lamb_step
from .model import Model, StepInput
from .verification import verify_same


def apply_adam(
    model: Model, number: int, step: StepInput, grad_scale: float, rows: slice
) -> None:
    """Adam's step `number` on some rows."""
    c = model.coefficients(number, grad_scale)
    for at in model.pieces:
        own = slice(max(at.start, rows.start), min(at.stop, rows.stop))
        if own.start < own.stop:
            adam_step(
                step.params[own],
                model.exp_avg[own],
                model.variance[own],
                step.grads[own],
                c.of(own),
            )


def apply_lamb(
    model: Model, number: int, step: StepInput, grad_scale: float
) -> list[TrustRatio]:
    """LAMB's step `number` on all rows."""
    arrays = (step.params, model.exp_avg, model.variance, step.grads)
    return lamb_step(
        model.rows, model.numbers, arrays, (number, grad_scale), model.ordered
    )


class ExactOptimizer(DeviceOptimizer):
    """Gradients are averaged, clipped by their norm, and applied on every rank."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._first = FirstAgreements()

    @property
    def phase(self) -> str:
        return "exact"

    def _step(self, step: StepInput) -> None:
        model = self.model
        if step.is_last_chance:
            own = sum_of_squares(model, step.grads)
            if not find_nonfinite(model, own, step.report, self._first):
                return
        scale = exact_average(model, step)
        if scale is None:
            return
        self.steps += 1
        if model.settings.name == "lamb":
            apply_lamb(model, self.steps, step, scale)
        else:
            apply_adam(model, self.steps, step, scale, slice(0, model.rows.count))
        every = model.settings.verify_every
        if every and self.steps % every == 0:
            verify_same(model, step.params, f"step {self.steps}\n")

# SPDX-License-Identifier: Apache-2.0
"""1-bit Adam on a device. Source: Tang et al., arXiv:2102.02888, Algorithm 1;
docs/algorithms/onebit-adam.md has the same lines."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from .adam import (
    Coefficients,
    denominator,
    moved,
    next_momentum,
    next_variance,
    per_row,
)
from .exact import apply_adam
from .lowbit_state import add_freeze, read_freeze
from .model import Model, StepInput
from .states import Adoption, Saved, State, add_elements
from .two_stage import TwoStageOptimizer


class OnebitAdam(TwoStageOptimizer):
    """Exact Adam up to the freeze, then momentum in one bit per element.

    Attributes:
        first: With variance_refresh, {flat index: denominator} of elements that were late, as
            two tensors: what theirs may not fall below.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.exact_rows = slice(model.rows.compressed, model.rows.count)
        self.has_exact_groups = any(model.rows.is_exact)
        self.refresh_every = 0
        device = model.rows.device
        self.first = (
            torch.zeros(0, dtype=torch.int64, device=device),
            torch.zeros(0).to(device),
        )

    def _warm_up(self, step: StepInput) -> None:
        scale = self.gradients.average(step)
        if scale is None:
            return
        self.steps += 1
        model = self.model
        apply_adam(model, self.steps, step, scale, slice(0, model.rows.count))
        if self.freeze.ends_at(self.steps):
            keeps = self.refresh_every > 0 or self.has_exact_groups
            self.freeze.freeze(self.steps, keeps, self.who, self.denominators)
            if self.refresh_every:
                self._begin_refresh()

    def _compressed_step(self, step: StepInput) -> None:
        scale = self.clip(step)
        if scale is None:
            return
        self.steps += 1
        c = self.model.coefficients(self.steps, scale)
        self._admit(self.prepare(step, scale))
        exact_grads = step.grads[self.exact_rows]
        if self.has_exact_groups:
            self.model.exchange.sum_(exact_grads, self.model.ordered)
        if (
            self.refresh_every
            and (self.steps - self.freeze.at) % self.refresh_every == 0
        ):
            self._refresh(step, c)
        else:
            self.momentum.all_reduce(step, c, self.denominators.d)
        if self.has_exact_groups:
            divisor = self.model.sum_divisor(step.grads)
            apply_adam(self.model, self.steps, step, scale / divisor, self.exact_rows)

    # ---- variance refresh: the gradient travels in four bits, and the variance follows it

    def _begin_refresh(self) -> None:
        compressed = slice(0, self.model.rows.compressed)
        m, v = self.model.exp_avg[compressed], self.model.variance[compressed]
        m.copy_(torch.where(self.who.active, m, 0.0))
        c = self.model.coefficients(self.steps, 1.0).of(compressed)
        v.mul_(c.exp_avg_sq_scale)

    def _admit(self, woken: torch.Tensor) -> None:
        """v becomes d^2 of elements that have come to life, and d does not fall below."""
        if not self.refresh_every or not len(woken):
            return
        d = self.denominators.d.view(-1)[woken]
        self.model.variance.view(-1)[woken] = d * d
        at, values = torch.cat([self.first[0], woken]), torch.cat([self.first[1], d])
        order = at.argsort()
        self.first = (at[order], values[order])

    def _refresh(self, step: StepInput, c: Coefficients) -> None:
        model = self.model
        groups, every = model.settings.groups, float(self.refresh_every)
        beta2 = [math.pow(group.beta2, every) for group in groups]
        refreshing = replace(
            c,
            grad_scale=1.0,
            beta2=per_row(beta2, model.rows.group),
            one_minus_beta2=per_row([1 - b for b in beta2], model.rows.group),
            exp_avg_sq_scale=1.0,
        )

        def own_gradient(rows: slice) -> torch.Tensor:
            g = step.grads[rows].float() * c.grad_scale
            return torch.where(self.who.active[rows], g, 0.0)

        def apply(rows: slice, g: torch.Tensor) -> None:
            self._apply_refresh(rows, g, step, refreshing.of(rows))

        if not model.compresses:
            for rows in model.buckets:
                apply(rows, own_gradient(rows))
        else:
            self.momentum.run_in_4_bits(own_gradient, c, apply)

    def _apply_refresh(
        self, rows: slice, g: torch.Tensor, step: StepInput, c: Coefficients
    ) -> None:
        m, v = self.model.exp_avg[rows], self.model.variance[rows]
        m.copy_(next_momentum(m, g, c))
        v.copy_(torch.where(g == 0, v, next_variance(v, g, c)))
        d = self.denominators.d
        d[rows] = denominator(v, c)
        self.denominators.refit(rows, self.who.values[rows])
        at, least = self.first
        own = (at >= rows.start * d.shape[1]) & (at < rows.stop * d.shape[1])
        flat = d.view(-1)
        flat[at[own]] = torch.maximum(flat[at[own]], least[own])
        step.params[rows] = moved(step.params[rows], m, d[rows], c)

    # ---- state

    def add_own(self, state: State) -> None:
        add_freeze(self, self.freeze, state)
        if len(self.first[0]):
            add_elements(self.model.rows, state, "revived_denominators", *self.first)

    def read_own(self, saved: Saved) -> Adoption:
        of_freeze = read_freeze(self.freeze, saved)
        first = self.first[0][:0], self.first[1][:0]
        if "revived_denominators" in saved:
            at = saved.elements("revived_denominators")
            first = at, saved.array("revived_denominators", torch.float32, len(at))

        def adopt() -> None:
            of_freeze()
            self.first = first

        return adopt

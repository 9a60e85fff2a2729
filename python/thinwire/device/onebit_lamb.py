# SPDX-License-Identifier: Apache-2.0
"""1-bit LAMB on a device. Source: Li et al., arXiv:2104.06069, Algorithm 1;
docs/algorithms/onebit-lamb.md has the same lines."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from .adam import Coefficients, as_tensor, denominator, moved, next_variance
from .exact import apply_lamb
from .lamb import learning_rates
from .lamb_coefficients import (
    FactorSums,
    LambCoefficients,
    common_size_scales,
)
from .lowbit_state import add_freeze, read_freeze
from .model import Model, StepInput
from .states import Adoption, Saved, State
from .sums import squares, total_of_chunks
from .two_stage import TwoStageOptimizer


class OnebitLamb(TwoStageOptimizer):
    """Exact LAMB up to the freeze, then momentum in one bit per element.

    Attributes:
        scales: Per parameter, what its momentum travels multiplied by; empty before the freeze.
        fresh: [compressed rows, 1024], the variance that is not frozen.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.coefficients = LambCoefficients(model.settings.own, len(model.rows.sizes))
        self.scales: list[float] = []
        self.fresh: torch.Tensor | None = None

    def lamb_coeffs(self) -> list[float]:
        """What the last step of each parameter was multiplied with."""
        return list(self.coefficients.last)

    def _warm_up(self, step: StepInput) -> None:
        scale = self.gradients.average(step)
        if scale is None:
            return
        self.steps += 1
        for i, ratio in enumerate(apply_lamb(self.model, self.steps, step, scale)):
            self.coefficients.last[i] = ratio.value
            if ratio.computed:
                self.coefficients.average(i, ratio.value)
        if self.freeze.ends_at(self.steps):
            self._begin_compression()

    def _begin_compression(self) -> None:
        model = self.model
        self.freeze.freeze(self.steps, True, self.who, self.denominators)
        self.fresh = model.variance
        model.exp_avg_sq = None
        rows = model.rows
        rms = []
        for k, size in enumerate(rows.sizes):
            total = total_of_chunks(
                squares(model.exp_avg[rows.rows_of(k)], model.ordered)
            )
            rms.append(math.sqrt(total.item() / size) if size else 0.0)
        self.set_scales(common_size_scales(rms, rows.groups))

    def set_scales(self, scales: list[float]) -> None:
        """Brings momenta to one size while they travel."""
        self.scales = scales
        rows = self.model.rows
        table = torch.tensor(
            [*scales, 1.0], dtype=torch.float64, device=rows.device
        ).float()
        own = rows.parameter[: rows.compressed].clamp(max=len(scales))
        self.momentum.units = table[own] if scales else None

    def _compressed_step(self, step: StepInput) -> None:
        scale = self.clip(step)
        if scale is None:
            return
        self.steps += 1
        model = self.model
        c = model.coefficients(self.steps, scale)
        self._admit(self.prepare(step, scale))
        self._set_coefficients(self._average_momentum(step, c))
        rates = learning_rates(
            model.rows, model.settings.groups, self.coefficients.last
        )
        c = replace(c, minus_learning_rate=rates)
        d = self.denominators.d
        for rows in model.buckets:
            p, m = step.params[rows], model.exp_avg[rows]
            step.params[rows] = moved(p, m, d[rows], c.of(rows))

    def _average_momentum(self, step: StepInput, c: Coefficients) -> FactorSums:
        """As rows arrive, their fresh variance and their part of the norms are formed."""
        model, momentum = self.model, self.momentum
        device, count = model.rows.device, model.rows.compressed
        sums = FactorSums(
            torch.zeros(count, dtype=torch.float64, device=device),
            torch.zeros(count, dtype=torch.float64, device=device),
            torch.zeros(count, device=device),
        )

        def take(rows: slice, m: torch.Tensor) -> None:
            self._update_fresh(rows, m, step.params[rows], c.of(rows), sums)
            model.exp_avg[rows] = m

        if not model.compresses:
            for rows in model.buckets:
                m = momentum.next(rows, step.grads, c)
                take(rows, torch.where(self.who.active[rows], m, 0.0))
            return sums
        assert momentum.units is not None
        units = momentum.units[:, None]
        momentum.run(
            lambda rows: momentum.next(rows, step.grads, c) * units[rows],
            lambda rows, scale, plus: take(
                rows, self.decoded(rows, scale / units[rows], plus)
            ),
        )
        return sums

    def _update_fresh(
        self,
        rows: slice,
        m: torch.Tensor,
        p: torch.Tensor,
        c: Coefficients,
        sums: FactorSums,
    ) -> None:
        """kernels::lamb_factor: the gradient that the momentum stands for, and its variance."""
        assert self.fresh is not None
        ordered, active = self.model.ordered, self.who.active[rows]
        previous = torch.where(active, self.model.exp_avg[rows], 0.0)
        g = (m - c.beta1 * previous) / as_tensor(c.one_minus_beta1, m)
        self.fresh[rows] = next_variance(self.fresh[rows], g, c)
        d = self.denominators.d[rows]
        floors = self.denominators.floors[rows][:, None]
        ratio = d / torch.maximum(denominator(self.fresh[rows], c), floors)
        ratio = torch.where(active & (ratio > 0), ratio, 0.0)
        sums.ratio[rows] = ratio.amax(1)
        plain = (m * c.exp_avg_scale) / d
        decay = as_tensor(c.decoupled_decay, m)
        has_decay = (decay != 0).double().reshape(-1)
        sums.plain[rows] = squares(plain, ordered) * has_decay
        sums.update[rows] = squares(plain + decay * p, ordered) * has_decay

    def _set_coefficients(self, sums: FactorSums) -> None:
        rows, own = self.model.rows, self.coefficients
        totals = sums.of_parameters(rows, self.model.ordered)
        for i, (plain, update, ratio) in enumerate(totals):
            drift = 1.0 if ratio == 0 else ratio
            decayed = 1.0 if update == 0 else min(1.0, math.sqrt(plain / update))
            has_decay = self.model.settings.groups[rows.groups[i]].weight_decay > 0
            own.last[i] = own.corrected_average(i) * own.factor(
                i, drift, decayed, has_decay
            )

    def _admit(self, woken: torch.Tensor) -> None:
        """As if the variance of late elements had been d^2 from the start."""
        if not len(woken):
            return
        assert self.fresh is not None
        groups, own = self.model.settings.groups, self.model.settings.own
        seen = [
            1 - math.pow(group.beta2, self.steps) if own.bias_correction else 1.0
            for group in groups
        ]
        table = torch.tensor(seen, dtype=torch.float64, device=woken.device)
        of = table[self.model.rows.group[woken // self.fresh.shape[1]]]
        d = self.denominators.d.view(-1)[woken].double()
        self.fresh.view(-1)[woken] = (d * d * of).float()

    # ---- state

    def add_own(self, state: State) -> None:
        add_freeze(self, self.freeze, state)
        own = self.coefficients
        state["lamb_coeffs"] = torch.tensor(own.last, dtype=torch.float64)
        state["lamb_coeff_freeze"] = torch.tensor(own.averages, dtype=torch.float64)
        state["lamb_coeff_count"] = torch.tensor(own.counts, dtype=torch.int64)
        state["last_factor"] = torch.tensor(own.last_factors, dtype=torch.float64)
        if self.fresh is not None:
            state["scaling_coeff"] = torch.tensor(self.scales, dtype=torch.float64)
            state["exp_avg_sq_fresh"] = self.model.rows.dense(self.fresh)

    def read_own(self, saved: Saved) -> Adoption:
        of_freeze = read_freeze(self.freeze, saved)
        count = len(self.model.rows.sizes)
        read = LambCoefficients(self.model.settings.own, count)
        read.last = saved.values("lamb_coeffs", count)
        read.averages = saved.values("lamb_coeff_freeze", count)
        read.counts = saved.array("lamb_coeff_count", torch.int64, count).tolist()
        read.last_factors = saved.values("last_factor", count)
        is_frozen = saved.integer("frozen_at") > 0
        scales = saved.values("scaling_coeff", count) if is_frozen else []
        fresh = saved.of_compressed("exp_avg_sq_fresh") if is_frozen else None

        def adopt() -> None:
            of_freeze()
            self.coefficients, self.fresh = read, fresh
            self.set_scales(scales)

        return adopt

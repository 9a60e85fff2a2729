# SPDX-License-Identifier: Apache-2.0
"""0/1 Adam on a device. Source: Lu et al., arXiv:2202.06009, Algorithm 1;
docs/algorithms/zero-one-adam.md has the same lines."""

from __future__ import annotations

import torch

from ..errors import CorruptCheckpoint
from .adam import (
    Coefficients,
    denominator,
    moved,
    next_momentum,
    next_variance,
)
from .local_updates import LocalUpdates
from .lowbit import LowBitOptimizer
from .model import Model, StepInput
from .states import Adoption, Saved, State
from .zero_one_schedule import Schedule


class ZeroOneAdam(LowBitOptimizer):
    """One bit per element in some steps, nothing in the others."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        stages = model.settings.own.stages()
        self.schedule = Schedule(stages)
        self.var_updates = 0
        self.updates = LocalUpdates(model, self.momentum, self.who, self.denominators)
        self._freeze_step = int(stages.var_freeze_step)
        self._sends_momentum = True

    @property
    def is_frozen(self) -> bool:
        return self.steps >= self._freeze_step

    @property
    def phase(self) -> str:
        following = self.steps + 1
        if self.is_frozen:
            return (
                "compressed"
                if following % self.schedule.local_interval == 0
                else "local"
            )
        return "exact" if following % self.schedule.var_interval == 0 else "compressed"

    def take_step(self, step: StepInput) -> None:
        if self.is_frozen:
            self._frozen_step(step)
        elif self.phase == "exact":
            self._variance_step(step)
        else:
            self._one_bit_step(step)
        if not step.report.applied:
            return
        if self.steps == self._freeze_step:
            self.updates.begin(step.params)
            self.model.exp_avg_sq = None
            self.momentum.clear_residuals()
        if not self.is_frozen or self.updates.ranks_are_equal:
            self.verify(step.params, self.schedule.describe())
        else:
            self.put_off_verification()

    # ---- before the freeze

    def _variance_step(self, step: StepInput) -> None:
        scale = self.gradients.average(step)
        if scale is None:
            return
        self.steps += 1
        self.var_updates += 1
        model = self.model
        c = model.numbers.coefficients(self.steps, scale, self.var_updates)
        m, v = model.exp_avg, model.variance
        # Exact steps know nothing of heavy elements: their gradients are whole.
        flat = m.view(-1)
        flat[self.denominators.heavy] /= self.denominators.factors
        d = torch.empty_like(m)
        for rows in model.buckets:
            own = c.of(rows)
            g = step.grads[rows].float() * own.grad_scale
            m[rows] = next_momentum(m[rows], g, own)
            v[rows] = next_variance(v[rows], g, own)
            d[rows] = denominator(v[rows], own)
        self.denominators.fit(d, self.who.by_variance(v))
        for rows in model.buckets:
            step.params[rows] = moved(
                step.params[rows], m[rows], self.denominators.d[rows], c.of(rows)
            )
        self.schedule.variance_updated()

    def _one_bit_step(self, step: StepInput) -> None:
        scale = self.clip(step)
        if scale is None:
            return
        self.steps += 1
        self._admit(self.prepare(step, scale))
        if self._sends_momentum:
            c = self.model.coefficients(self.steps, scale)
            self.momentum.all_reduce(step, c, self.denominators.d)
        else:
            self._exchange_gradient(step, self.model.coefficients(self.steps, scale))

    def _exchange_gradient(self, step: StepInput, c: Coefficients) -> None:
        model = self.model
        averaged = step.grads.float() * c.grad_scale
        if model.compresses:
            own = averaged.clone()

            def take(rows: slice, scale: torch.Tensor, plus: torch.Tensor) -> None:
                averaged[rows] = self.decoded(rows, scale, plus)

            self.momentum.run(lambda rows: own[rows], take)
        step = StepInput(step.params, averaged, step.loss_scale, step.report)
        c = model.coefficients(self.steps, 1.0)
        self.momentum.apply_own(step, c, self.denominators.d)

    def _admit(self, woken: torch.Tensor) -> None:
        """The next update of v finds the variance that the element's d would have."""
        if not len(woken):
            return
        numbers = self.model.numbers
        scales = torch.tensor(
            numbers.corrections("beta2", self.var_updates),
            dtype=torch.float64,
            device=woken.device,
        ).float()
        d = self.denominators.d.view(-1)[woken]
        of = scales[self.model.rows.group[woken // self.denominators.d.shape[1]]]
        self.model.variance.view(-1)[woken] = d * d / of

    # ---- after it

    def _frozen_step(self, step: StepInput) -> None:
        syncs = self.phase == "compressed"
        scale = self.clip(step) if syncs else self.gradients.clip_locally(step)
        if not step.report.applied:
            return
        self.steps += 1
        if syncs:
            assert scale is not None
            self.prepare(step, scale)
        elif scale is not None:
            grads = self.compressed(step)
            self.who.remember(grads)
            self.denominators.guard(grads, scale)
        c = self.model.coefficients(self.steps, 1.0 if scale is None else scale)
        self.updates.count(self.steps)
        # Without a learning rate nothing has moved: there is nothing to sync.
        moves = syncs and self.updates.some_group_moved
        if moves and self.model.compresses:
            self.updates.sync(step, c)
        else:
            if scale is not None:
                self.updates.step(step, c)
            else:
                self.updates.leave_out()
            if moves:
                self.updates.sync_alone(step.params)
        self.schedule.local_step_taken()

    def _synchronize(self, params: torch.Tensor) -> None:
        if self.is_frozen:
            self.updates.synchronize(params)

    def _begin_anew(self, params: torch.Tensor) -> None:
        if self.is_frozen:
            self.updates.begin_anew(params)

    def _repeat_local_steps(self, params: torch.Tensor) -> None:
        self.updates.repeat(params)

    @property
    def steps_behind(self) -> int:
        return 0 if self.updates.ranks_are_equal else self.updates.steps

    def exchanged_params(self, params: torch.Tensor) -> torch.Tensor:
        if self.steps_behind == 0:
            return params.clone()
        assert self.updates.origin is not None
        return self.updates.origin.view(-1).clone()

    # ---- state

    def add_own(self, state: State) -> None:
        schedule = self.schedule
        state["var_interval"] = schedule.var_interval
        state["var_counter"] = schedule.var_counter
        state["local_step_interval"] = schedule.local_interval
        state["local_step_counter"] = schedule.local_counter
        state["var_updates"] = self.var_updates
        state["frozen"] = int(self.is_frozen)
        rows = self.model.rows
        d = self.denominators.values
        state["denominator"] = rows.dense(rows.zeros() if d is None else d)
        self.updates.add_to(state)

    def read_own(self, saved: Saved) -> Adoption:
        schedule = Schedule(
            self.model.settings.own.stages(),
            saved.integer("var_interval"),
            saved.integer("var_counter"),
            saved.integer("local_step_interval"),
            saved.integer("local_step_counter"),
        )
        if schedule.var_interval < 1 or schedule.local_interval < 1:
            raise CorruptCheckpoint(
                f"saved intervals must be >= 1, got var_interval {schedule.var_interval} and "
                f"local_step_interval {schedule.local_interval}"
            )
        var_updates = saved.integer("var_updates")
        was_frozen = saved.integer("step") >= self._freeze_step
        if not was_frozen and "exp_avg_sq" not in saved:
            raise CorruptCheckpoint("the state has no 'exp_avg_sq'")
        of_updates = self.updates.read(saved, was_frozen)

        def adopt() -> None:
            self.schedule, self.var_updates = schedule, var_updates
            of_updates()

        return adopt

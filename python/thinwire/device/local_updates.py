# SPDX-License-Identifier: Apache-2.0
"""0/1 Adam's steps after its freeze: updates of each rank over common parameters, and the sync
that averages them times the denominator, as a momentum."""

from __future__ import annotations

from typing import Any

import torch

from .adam import Coefficients, next_momentum, per_row, rounded
from .codec import signed
from .denominators import Denominators
from .model import Model, StepInput
from .momentum import CompressedMomentum, Source
from .participation import Participation
from .states import Adoption, Saved


class LocalUpdates:
    """theta: parameters at the last sync (`origin`); u: this rank's updates since
    (`accumulator`); per group in double `lrs`, the learning rates since, and `decay`.

    Attributes:
        accumulated: False: u is 0 everywhere.
        steps, taken: Since the last sync, by all ranks, and those that this one did not leave
            out; `decay_taken` is the decay at the last of these.
    """

    def __init__(
        self,
        model: Model,
        momentum: CompressedMomentum,
        who: Participation,
        denominators: Denominators,
    ) -> None:
        self._model = model
        self._momentum = momentum
        self._who = who
        self._denominators = denominators
        self.origin: torch.Tensor | None = None
        self.accumulator = torch.zeros(0)
        self.momenta_differ = False
        self.decay_taken = [1.0] * len(model.settings.groups)
        self._begin_interval()

    def _begin_interval(self) -> None:
        groups = len(self._model.settings.groups)
        self.accumulated = False
        self.steps = 0
        self.taken = 0
        self.lrs = [0.0] * groups
        self.decay = [1.0] * groups

    def begin(self, params: torch.Tensor) -> None:
        """At the freeze: theta = p, u = 0."""
        self.origin = params.clone()
        self.accumulator = torch.zeros_like(params)

    def begin_anew(self, params: torch.Tensor) -> None:
        """After that: the same with other parameters; the momentum stays."""
        if self.origin is not None:
            self.origin.copy_(params)
            self._begin_interval()

    @property
    def theta(self) -> torch.Tensor:
        assert self.origin is not None
        return self.origin

    @property
    def some_group_moved(self) -> bool:
        return any(total > 0 for total in self.lrs)

    @property
    def some_group_rests(self) -> bool:
        return any(total == 0 for total in self.lrs)

    @property
    def ranks_are_equal(self) -> bool:
        return not self.accumulated or not self.some_group_moved

    def count(self, step: int) -> None:
        """Every step, taken or left out."""
        numbers = self._model.numbers
        corrections = numbers.corrections("beta1", step)
        for g, group in enumerate(numbers.groups):
            self.lrs[g] += group.learning_rate * rounded(corrections[g])
            self.decay[g] *= 1 - group.learning_rate * rounded(group.weight_decay)
        self.steps += 1

    def _decay_column(self, rows: slice, decay: list[float]) -> float | torch.Tensor:
        return per_row(decay, self._model.rows.group[rows])

    def _advanced(self, rows: slice, m: torch.Tensor, c: Coefficients) -> torch.Tensor:
        """u - lr (m^ / d)."""
        u = self.accumulator[rows] if self.accumulated else torch.zeros_like(m)
        d = self._denominators.d[rows]
        return u + c.minus_learning_rate * ((m * c.exp_avg_scale) / d)

    # ---- a local step

    def step(self, step: StepInput, c: Coefficients) -> None:
        """m = beta1 m + (1 - beta1) g_i, u = u - lr (m^ / d), p = decay theta + u."""
        for rows in self._model.buckets:
            own = c.of(rows)
            m = self._momentum.update(rows, step.grads, c)
            u = self._advanced(rows, m, own)
            self.accumulator[rows] = u
            step.params[rows] = (
                self.theta[rows] * self._decay_column(rows, self.decay) + u
            )
        self.accumulated = True
        self.momenta_differ = True
        self.taken += 1
        self.decay_taken = list(self.decay)

    def leave_out(self) -> None:
        """This rank takes no step; its interval begins as on the others."""
        if not self.accumulated:
            self.accumulator.zero_()
        self.accumulated = True
        self.momenta_differ = True

    # ---- the sync

    def sync(self, step: StepInput, c: Coefficients) -> None:
        """Collective: this step, of which the others' is part, and the sync after it."""
        self._keep_momentum_of_resting_groups(step.grads, c)
        d = self._denominators.d

        def own(rows: slice) -> torch.Tensor:
            m = self._momentum.next(rows, step.grads, c)
            return self._advanced(rows, m, c.of(rows)) * d[rows]

        self._exchange(step.params, own)

    def _exchange(self, params: torch.Tensor, source: Source) -> None:
        model = self._model
        lrs = torch.tensor(
            self.lrs, dtype=torch.float64, device=model.rows.device
        ).float()
        lrs = lrs[model.rows.group][:, None]

        def take(rows: slice, scale: torch.Tensor, plus: torch.Tensor) -> None:
            active, moves = self._who.active[rows], lrs[rows] != 0
            b = signed(scale, plus, active)
            theta = self.theta[rows] * self._decay_column(rows, self.decay)
            theta = theta + b / self._denominators.d[rows]
            m = signed(scale / -lrs[rows], plus, active)
            self.theta[rows] = torch.where(moves, theta, self.theta[rows])
            params[rows] = torch.where(moves, theta, params[rows])
            model.exp_avg[rows] = torch.where(moves, m, model.exp_avg[rows])
            if self.some_group_rests:
                self._give_back(rows, torch.where(moves, 0.0, b))

        self._momentum.run(source, take)
        self._momentum.units = -lrs[: model.rows.compressed, 0]
        if not self.some_group_rests:
            self.momenta_differ = False
        self._begin_interval()

    def _give_back(self, rows: slice, returned: torch.Tensor) -> None:
        """A group that rests does not move: what residuals gave for it goes back."""
        error = self._momentum.worker_error
        assert error is not None
        error[rows] = (error[rows].float() + returned).to(error.dtype)

    def _keep_momentum_of_resting_groups(
        self, grads: torch.Tensor, c: Coefficients
    ) -> None:
        """A group whose learning rate was 0 all the time has no u to take m from."""
        if not self.some_group_rests:
            return
        self.momenta_differ = True
        m = self._model.exp_avg
        rests = torch.tensor([total == 0 for total in self.lrs], device=m.device)
        rests = rests[self._model.rows.group][:, None]
        for rows in self._model.buckets:
            own = c.of(rows)
            moved = next_momentum(m[rows], grads[rows].float() * own.grad_scale, own)
            m[rows] = torch.where(rests[rows], moved, m[rows])

    def sync_alone(self, params: torch.Tensor) -> None:
        """A group of one: what would travel is what it has."""
        self.theta.copy_(params)
        device = params.device
        lrs = torch.tensor(self.lrs, dtype=torch.float64, device=device).float()
        lrs = lrs[self._model.rows.group][:, None]
        m = self._model.exp_avg
        given = -(self.accumulator * self._denominators.d) / lrs
        m.copy_(torch.where(lrs == 0, m, given))
        self._begin_interval()

    def synchronize(self, params: torch.Tensor) -> None:
        """Collective: a sync between steps, where ranks differ."""
        if self.ranks_are_equal:
            return
        if not self._model.compresses:
            self.sync_alone(params)
            return
        u, d = self.accumulator, self._denominators.d
        self._exchange(params, lambda rows: u[rows] * d[rows])

    def repeat(self, params: torch.Tensor) -> None:
        """From theta, what step() last made of them."""
        if self.accumulated and self.taken:
            decay = per_row(self.decay_taken, self._model.rows.group)
            params.copy_(self.theta * decay + self.accumulator)

    # ---- state

    def add_to(self, state: dict[str, Any]) -> None:
        state["lrs"] = torch.tensor(self.lrs, dtype=torch.float64)
        state["decay"] = torch.tensor(self.decay, dtype=torch.float64)
        state["accumulated"] = int(self.accumulated)
        state["momenta_differ"] = int(self.momenta_differ)
        state["local_steps"] = self.steps
        state["local_steps_taken"] = self.taken
        if self.origin is None:
            return
        rows = self._model.rows
        state["origin"] = rows.dense(self.origin)
        if self.accumulated:
            state["momentum_accumulator"] = rows.dense(self.accumulator)
            taken = self.decay_taken if self.taken else self.decay
            state["decay_taken"] = torch.tensor(taken, dtype=torch.float64)

    def read(self, saved: Saved, is_frozen: bool) -> Adoption:
        """What add_to() has written."""
        groups = len(self.lrs)
        lrs, decay = saved.values("lrs", groups), saved.values("decay", groups)
        accumulated = bool(saved.integer("accumulated"))
        momenta_differ = bool(saved.integer("momenta_differ"))
        steps, taken = saved.integer("local_steps"), saved.integer("local_steps_taken")
        decay_taken = (
            saved.values("decay_taken", groups) if "decay_taken" in saved else decay
        )
        origin = saved.of_elements("origin") if is_frozen else None
        accumulator = saved.rows.zeros() if is_frozen else torch.zeros(0)
        if is_frozen and accumulated:
            accumulator = saved.of_elements("momentum_accumulator")

        def adopt() -> None:
            self.origin, self.accumulator = origin, accumulator
            self.accumulated, self.momenta_differ = accumulated, momenta_differ
            self.steps, self.taken = steps, taken
            self.lrs, self.decay, self.decay_taken = lrs, decay, decay_taken

        return adopt

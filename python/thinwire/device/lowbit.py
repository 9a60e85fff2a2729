# SPDX-License-Identifier: Apache-2.0
"""What the three low-bit optimizers share on a device, beside the parts that they are made of."""

from __future__ import annotations

from abc import abstractmethod

import torch

from .base import DeviceOptimizer
from .codec import signed
from .denominators import Denominators
from .gradients import Gradients
from .lowbit_state import (
    add_shared,
    moved_server_error,
    native_rows,
    read_shared,
    served_rows,
)
from .model import Model, StepInput
from .momentum import CompressedMomentum
from .participation import Participation
from .states import Adoption, Saved, State
from .verification import verify_same


class LowBitOptimizer(DeviceOptimizer):
    """1-bit Adam, 1-bit LAMB or 0/1 Adam: one step is take_step()."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.who = Participation(model)
        self.denominators = Denominators(model, self.who)
        self.momentum = CompressedMomentum(model, self.who)
        self.gradients = Gradients(model)
        self.verification_is_due = False

    @abstractmethod
    def take_step(self, step: StepInput) -> None: ...

    def _step(self, step: StepInput) -> None:
        self.take_step(step)
        step.report.masked = self.who.num_out
        step.report.heavy = len(self.denominators.heavy)

    def clip(self, step: StepInput) -> float | None:
        """What to multiply this rank's gradient by in a step that averages momentum; None: it
        is skipped."""
        return self.gradients.clip_by_estimate(
            step, self.who.has_late(self.compressed(step))
        )

    def decoded(
        self, rows: slice, scale: torch.Tensor, plus: torch.Tensor
    ) -> torch.Tensor:
        """+-scale of some rows, 0 where masked."""
        return signed(scale, plus, self.who.active[rows])

    def compressed(self, step: StepInput) -> torch.Tensor:
        """The gradients of compressed rows."""
        return step.grads[: self.model.rows.compressed]

    def prepare(self, step: StepInput, grad_scale: float) -> torch.Tensor:
        """Before gradients are encoded: late elements that have one take part from now on and
        are returned, flat; heavy elements and outliers are kept from spoiling their row."""
        grads = self.compressed(step)
        woken = torch.zeros(0, dtype=torch.int64, device=grads.device)
        if self.gradients.any_late:
            woken = self.who.revive(grads)
            self.model.exp_avg.view(-1)[woken] = 0
        step.report.revived += len(woken)
        self.denominators.guard(grads, grad_scale)
        return woken

    # ---- verification

    def put_off_verification(self) -> None:
        every = self.model.settings.verify_every
        if every > 0 and self.steps % every == 0:
            self.verification_is_due = True

    def verify(self, params: torch.Tensor, schedule: str) -> None:
        """Collective after a step that was applied: compares parameters and schedule of the
        ranks where options say that it is time."""
        self.put_off_verification()
        if not self.verification_is_due:
            return
        self.verification_is_due = False
        verify_same(self.model, params, f"step {self.steps} {schedule}\n")

    @property
    def residual_ratio(self) -> float:
        """Norm of this rank's residual over that of the momentum as it was last exchanged; 0
        before."""
        error = self.momentum.worker_error
        if error is None:
            return 0.0
        m = self.model.exp_avg[: self.model.rows.compressed]
        if self.momentum.units is not None:
            m = m * self.momentum.units[:, None]
        mean = float(m.double().square().sum())
        residual = float(error.double().square().sum())
        return (residual / mean) ** 0.5 if mean else 0.0

    # ---- state

    def _own_state(self, state: State) -> None:
        add_shared(self, state)
        self.add_own(state)

    def _read_own(self, saved: Saved) -> Adoption:
        shared, own = read_shared(self, saved), self.read_own(saved)

        def adopt() -> None:
            shared()
            own()

        return adopt

    @abstractmethod
    def add_own(self, state: State) -> None:
        """Adds what only this optimizer keeps."""

    @abstractmethod
    def read_own(self, saved: Saved) -> Adoption:
        """Checks that and returns what puts it in place."""

    def native_state(self) -> State:
        state = super().native_state()
        if "server_error" in state:
            here = served_rows(self, self.model.exchange.rank)
            state["server_error"] = moved_server_error(
                self, state["server_error"], here, native_rows(self)
            )
        return state

    def _from_native(self, state: State) -> State:
        if "server_error" not in state:
            return state
        there, rows = native_rows(self), self.model.rows
        dtype = self.model.settings.residual_dtype
        size = int(rows.valid(there).sum())
        error = Saved(state, rows).array("server_error", dtype, size)
        here = served_rows(self, self.model.exchange.rank)
        return {**state, "server_error": moved_server_error(self, error, there, here)}

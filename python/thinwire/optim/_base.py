# SPDX-License-Identifier: Apache-2.0
"""The base of all optimizers: torch's interface to an optimizer on flat arrays."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Literal, NoReturn, overload

import torch
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT

from .. import _core
from .._agreement import agreed, telling_others
from ..comm.calls import in_call
from ..comm.lifetime import note_daemon
from ..errors import FailedPrecondition, InvalidArgument
from ..report import StepReport
from . import _state
from ._deepspeed import DeepSpeedNames
from ._flat import FlatOptimizer
from ._given import PerParameter, per_place
from ._notices import RunTotals
from ._options import number_of


class _Optimizer(DeepSpeedNames, FlatOptimizer):
    """torch.optim.Optimizer whose step() communicates.

    Each rank computes its own gradients, and nothing else may average them. The
    constructor, step(), synchronize(), evaluation(), add_param_group() and
    set_max_grad_norm() are collective: all ranks call them in the same order. `report`
    holds the results of the last step.
    """

    # With this flag, torch's GradScaler calls step() on every rank, even if one
    # overflowed.
    _step_supports_amp_scaling = True

    # A GradScaler sets these attributes during a step; torch's scaler checks whether
    # they exist.
    grad_scale: float | torch.Tensor | None
    found_inf: torch.Tensor
    _found_inf_is_agreed = False

    def __init__(self, params: ParamsT, *args: Any, **keywords: Any) -> None:
        """Makes the optimizer; help() of its class explains the arguments. Collective."""
        super().__init__(params, *args, **keywords)
        # This hook is first, so that the caller's hooks see the whole state.
        self.register_state_dict_post_hook(_state.complete)

    @property
    def totals(self) -> RunTotals:
        """Traffic of this rank in this run, and the bytes that compression saved. A run
        that thinwire.resume() or load_state_dict() continues counts as one run. Local.
        """
        return self._notices.totals

    def get_lamb_coeffs(self) -> list[float]:
        """Returns the factors by which the last step multiplied the learning rates.
        Local.

        The list holds one factor per trained parameter, in order. The factors are trust
        ratios or, in compressed steps of 1-bit LAMB, scaling coefficients. Before the
        first step they are 0. The list is empty unless the optimizer is LAMB or 1-bit
        LAMB.
        """
        return list(self._made.optimizer.lamb_coeffs())

    def memory_use(self) -> dict[str, int]:
        """Returns the bytes that this rank holds. Local.

        The keys are parameters, gradients, states, buckets, other, and peak, the
        largest sum of them so far. All memory that this thread allocated counts, even
        for other optimizers. Activations do not count.
        """
        return _core.memory_use()

    @property
    def max_grad_norm(self) -> float:
        """Global norm to which gradients are clipped; 0 for no clipping."""
        return float(self._made.config.gradient_clipping)

    @property
    def _stepper(self) -> Any:
        return self._made.optimizer

    @in_call("set_max_grad_norm()")
    def set_max_grad_norm(self, max_grad_norm: float) -> None:
        """Sets the constructor argument of the same name, for callers that learn it
        later. Collective.

        Raises FailedPrecondition after a step, and InvalidArgument unless the norm is
        finite and >= 0.
        """
        self._require_no_step("set_max_grad_norm")
        before = dict(self._given)
        self._given["max_grad_norm"] = max_grad_norm
        try:
            self._build()
        except BaseException:
            self._given = before
            raise

    # ---- steps

    @overload
    def step(
        self,
        closure: None = None,
        grads: PerParameter | None = None,
        *,
        output_params: PerParameter | None = None,
    ) -> None: ...
    @overload
    def step(
        self,
        closure: Callable[[], float],
        grads: PerParameter | None = None,
        *,
        output_params: PerParameter | None = None,
    ) -> float: ...
    @_disable_dynamo
    @in_call("step()")
    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], float] | None = None,
        grads: PerParameter | None = None,
        *,
        output_params: PerParameter | None = None,
    ) -> float | None:
        """Averages the ranks' gradients or momenta and updates parameters. Collective.

        If `closure` is given, step() calls it to compute the loss, and returns the
        loss. A missing gradient counts as 0, so weight decay still acts on the
        parameter. Gradients are unspecified after the step. `report` holds the results.

        grads: tensors that replace the parameters' own gradients. With one group, they
          are a list or generator of one tensor per parameter, in the parameter's shape
          and of any floating dtype. With several groups, they are a list of such lists.
          None stands for the parameter's own gradient. The tensors are only read.
        output_params: tensors in the same form that receive the new values of the
          parameters, rounded to their own dtype. Entries may be None.

        With either argument, ranks first check in a small additional exchange that all
        can continue. Either all ranks or none must pass the argument.

        Values that the program has written into parameters since the last step take
        effect. All ranks must write the same values. Parameters may differ between
        ranks with compressed_under_next_step, and between exchanges of 0/1 Adam or an
        outer loop. The program must then call synchronize() first, or write all
        parameters, which discards updates since the last exchange.

        Raises FailedPrecondition if requires_grad or a fixed setting has changed since
        construction, and InvalidArgument or TypeError for an invalid value in
        param_groups. The step then changes nothing. With several ranks, this rank gives
        up: the others raise CommFailure with the error's text, and only close() is
        allowed. If ranks compare masks, all ranks refuse an invalid mask, and training
        may continue. Raises InvalidArgument or TypeError on all ranks if `grads` or
        `output_params` do not fit. Raises CommFailure if a rank was lost; then only
        close() is allowed.
        """
        native = self._made
        note_daemon()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        given_grads, outputs = self._given_tensors(grads, output_params)
        with self._telling_others("step()"):
            scale = self._scale()
            overflowed = self._overflowed()
        if overflowed:
            self.report = StepReport.skipped(native.optimizer.phase, scale)
            self._skipped_by_scaler += 1
            skipped = native.optimizer.skipped_steps + self._skipped_by_scaler
            self._notices.skipped(self.report, native.optimizer.steps, skipped)
            return loss
        with self._telling_others("step()"):
            self._require_same_parameters()
            self._edits.read_parameters()
            gradients = native.memory.collect_gradients(given_grads)
            self._settings.apply(self.param_groups, native)
            refusal = self._settings.apply_masks(
                self.param_groups,
                native.optimizer,
                native.places,
                native.unlike_others(self._comm),
            )

        def exchange() -> Any:
            self._edits.apply(is_collective=True)
            memory = native.memory
            return native.optimizer.step(
                memory.handed_params, gradients, scale, memory.final_range()
            )

        if refusal is not None:
            with suppress(InvalidArgument):
                exchange()  # so that the other ranks refuse the masks
            raise refusal
        self.report = StepReport.of(exchange())
        self._written()
        for place, output in zip(native.places, outputs, strict=False):
            if output is not None:
                output.copy_(place.tensor)
        self._after_step(self.report)
        return loss

    def _given_tensors(
        self, grads: PerParameter | None, outputs: PerParameter | None
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
        """Returns both arguments in the order of the trained parameters. Collective if
        either is given.
        """
        given = {"grads": grads, "output_params": outputs}
        if grads is None and outputs is None:
            return [], []
        native = self._made

        def take() -> list[list[torch.Tensor | None]]:
            self._settings.require_same_groups(self.param_groups)
            return [
                []
                if value is None
                else per_place(name, value, self.param_groups, native.places)
                for name, value in given.items()
            ]

        first, second = agreed(self._comm, take)
        return first, second

    def _after_step(self, report: StepReport) -> None:
        optimizer = self._made.optimizer
        steps, telemetry = optimizer.steps, self._telemetry
        skipped = optimizer.skipped_steps + self._skipped_by_scaler
        self._notices.after_step(report, steps, skipped, optimizer.freeze_step)
        if telemetry is not None and telemetry.wants_line(steps):
            rate = float(self.param_groups[0]["lr"])
            telemetry.write(report, steps, rate, optimizer.lamb_coeffs())

    @_disable_dynamo
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets gradients to 0 in the memory that step() reads, so that backward writes
        there. On devices other than the CPU, sets them to None. The argument has no
        effect. `model.zero_grad()` works as well, but costs a copy.
        """
        self._made.memory.attach_gradients()

    @in_call("synchronize()")
    def synchronize(self) -> None:
        """Makes parameters equal on all ranks if they differ. Collective. Call it
        before evaluation and saving. Parameters differ between exchanges of 0/1 Adam
        and of an outer loop. With compressed_under_next_step they differ after each
        compressed step, including the last. The call makes an additional exchange or
        discards this rank's own step, so that later results differ from a run without
        the call.
        """
        native = self._made
        with self._telling_others("synchronize()"):
            self._edits.make_writable()
        self._edits.apply(is_collective=True)
        native.optimizer.synchronize(native.memory.handed_params)
        self._written()

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Makes parameters equal on all ranks in the block `with
        optimizer.evaluation():`. Collective.
        """
        with in_call("evaluation()"):
            self.synchronize()
        yield

    def close(self) -> None:
        """Ends communication; the model does not change. Local, idempotent. Also runs
        when the optimizer is destroyed, and before the interpreter ends.

        With compressed_under_next_step, close() waits for the exchange in flight. If
        another rank does not answer, the wait ends after the time-out of the process
        group or of THINWIRE_TIMEOUT. A warning is then logged, and parameters keep the
        values of this rank.
        """
        if os.getpid() == self._process:
            self._closer()

    # ---- state

    @_disable_dynamo
    @in_call("load_state_dict()")
    def load_state_dict(
        self, state_dict: dict[str, Any], residuals: Literal["keep", "drop"] = "keep"
    ) -> None:
        """Loads a state; help(thinwire.optim) lists the accepted states. Collective
        with lean 1-bit Adam, or if betas, eps, max_coeff or min_coeff differ in the
        state; otherwise local. The state's values replace the optimizer's values, as in
        torch.

        residuals="drop" loads a low-bit optimizer's state on any rank of any number of
        ranks, except the residuals, which begin at 0.

        Raises CorruptCheckpoint or ValueError naming the part that does not fit, or
        FailedPrecondition for an empty state after a step. Nothing has changed then.
        """
        _state.load(self, state_dict, residuals)

    def __repr__(self) -> str:
        """Returns torch's text, and the settings of this optimizer and its run."""
        text = super().__repr__()
        native = self._native
        if native is None or not self._closer.alive or os.getpid() != self._process:
            return text
        steps = native.optimizer.steps
        planned = self.freeze_step
        freeze = "" if planned is None else f", freeze after step {planned}"
        if planned == "auto":
            freeze = ", automatic freeze"
        totals = self.totals
        return (
            f"{text}\n{native.layout.size} elements of "
            f"{str(native.memory.params.dtype).removeprefix('torch.')}, rank "
            f"{self._comm.rank} of {self._comm.size} over {self._comm.backend}\n"
            f"{steps} steps, the next one {self._next_step()}{freeze}\n"
            f"{totals.bytes_sent} bytes sent, {totals.bytes_saved} saved"
        )

    def _next_step(self) -> str:
        """Returns a text that says how the next step averages."""
        native = self._made
        phase, own = native.optimizer.phase, native.config.keywords()
        if phase != "exact" or self._comm.size == 1:
            return str(phase)
        first, rank = native.config.planned_first_steps, own.get("low_rank", 0)
        if rank and native.optimizer.steps >= first:
            return f"of low rank {rank}"
        if rank:
            return f"in {own['first_bits']} bits, of low rank {rank} after step {first}"
        last = self.report
        of_warm_up = last.bits if last is not None and last.phase == "exact" else 0
        bits = own.get("bits", 0) or of_warm_up
        return f"in {bits} bits" if bits else "exact"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled, it holds connections; "
            "make another one and load state_dict() into it"
        )

    def share_memory(self) -> NoReturn:
        """Raises TypeError, because ranks are processes with separate memory."""
        raise TypeError(
            f"{type(self).__name__}: states are not shared between processes; each rank "
            "makes an optimizer, and state_dict() carries states"
        )

    # ---- parts of a step

    def _require_same_parameters(self) -> None:
        for place in self._made.places:
            if not place.tensor.requires_grad:
                raise FailedPrecondition(
                    f"parameter '{place.name}' was frozen after the optimizer was made: "
                    "make the optimizer after requires_grad is set"
                )
        for place in self._frozen:
            if place.tensor.requires_grad and place.tensor.grad is not None:
                raise FailedPrecondition(
                    f"parameter '{place.name}' did not require a gradient when the "
                    "optimizer was made and has one now: make the optimizer after "
                    "requires_grad is set"
                )

    def _telling_others(self, call: str) -> AbstractContextManager[None]:
        return telling_others((self._comm, *self._experts.all), call)

    def _scale(self) -> float:
        given = getattr(self, "grad_scale", None)
        scale = 1.0 if given is None else number_of("grad_scale", given)
        if not 0 < scale < math.inf:
            raise InvalidArgument(f"grad_scale must be finite and > 0, got {scale}")
        return scale

    def _overflowed(self) -> bool:
        """Returns the overflow flag of a GradScaler, equal on all ranks."""
        if not hasattr(self, "found_inf"):
            return False
        if self._comm.size > 1 and not self._found_inf_is_agreed:
            raise FailedPrecondition(
                "torch's GradScaler looks for overflows on each rank alone, so ranks "
                "would part: use thinwire.GradScaler"
            )
        return bool(self.found_inf.item())

    def _agree(self, found_inf: torch.Tensor) -> None:
        """Sets found_inf to 1 on all ranks if it is above 0 on any rank, and otherwise
        to 0. Collective.
        """
        total = found_inf.detach().reshape(1).to("cpu", torch.float32).clone()
        for comm in (self._comm, self._together):
            if comm is not None and comm.size > 1:
                comm.all_reduce(total)
        found_inf.fill_(float(total.item() > 0))

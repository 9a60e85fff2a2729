# SPDX-License-Identifier: Apache-2.0
"""The base of all optimizers: torch's interface over one that steps on flat arrays."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn, overload

import torch
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT

from .. import _core, _log
from .._agreement import agreed
from .._memory import FlatMemory
from ..errors import FailedPrecondition, InvalidArgument
from ..report import StepReport
from . import _state
from ._edits import Edits
from ._lifetime import close_user, closing
from ._native import Native, Training, make_config, make_native
from ._notices import Notices
from ._options import CommonKeywords, check_keywords, default, names_of
from ._parameters import Place, all_parameters, refuse_module, trainable
from ._settings import Settings


class _Optimizer(torch.optim.Optimizer):
    """torch.optim.Optimizer whose step() communicates.

    Gradients are those of this rank: nobody else averages them. Collective are the
    constructor, step(), synchronize(), evaluation(), add_param_group() and
    set_max_grad_norm(); all ranks call them in the same order. `report` says what the
    last step did.
    """

    # torch's GradScaler then calls step() on every rank, also where one overflowed.
    _step_supports_amp_scaling = True

    _options: ClassVar[type[Any]]
    _group: ClassVar[type[Any]]
    _keywords: ClassVar[Any] = CommonKeywords

    # What a GradScaler sets for the time of a step; torch's asks whether it is there.
    grad_scale: float | torch.Tensor | None
    found_inf: torch.Tensor
    _found_inf_is_agreed = False

    report: StepReport | None
    """What the last step did; None before the first."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        **keywords: Any,
    ) -> None:
        """Collective; help(thinwire.optim) says what the arguments are."""
        self._native: Native | None = None
        self._closer: weakref.finalize[..., Any]
        self._process = os.getpid()
        self.report = None
        self._given = keywords
        self._join(keywords.get("process_group"))
        try:
            given = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
            agreed(self._comm, lambda: self._take(params, given))
            self._build()
        except BaseException:
            if self._owns_comm:
                self._comm.close()
            raise

    # ---- construction

    def _join(self, process_group: Any) -> None:
        from ..comm import communicator_for

        self._owns_comm = not isinstance(process_group, _core.Communicator)
        self._comm = communicator_for(process_group)
        self._notices = Notices(self._comm)

    def _take(self, params: ParamsT, given: dict[str, Any]) -> None:
        """Local: makes torch's part of the optimizer."""
        check_keywords(type(self).__name__, self._given, names_of(self._keywords))
        refuse_module(params)
        for name, value in given.items():
            given[name] = default(self._options(), name) if value is None else value
        super().__init__(params, given)
        # First of all hooks, so that those of the caller see the whole state.
        self.register_state_dict_post_hook(_state.complete)
        self._step_tensor = torch.zeros(())

    def _plan(self) -> tuple[list[Place], _core.Config]:
        """Local: parameters in their order, and all that the C++ side is told."""
        places = trainable(self.param_groups)
        backend = self._comm.backend
        given, groups = self._given, self.param_groups
        options = self._options()
        return places, make_config(options, self._group, given, groups, places, backend)

    def _build(self) -> None:
        """Collective: the native optimizer of the present groups, in place of an earlier
        one. Whatever is refused, on whichever rank, changes nothing."""
        places, config = agreed(self._comm, self._plan)
        made = make_native(
            self._comm,
            self._given.get("process_group"),
            config,
            places,
            len(self.param_groups),
            self._given.get("broadcast") is not False,
        )
        earlier = self._native
        made.memory.give_homes()
        made.memory.note_written()
        self._native = made
        self._edits = Edits(self._comm, made)
        if earlier is not None:
            close_user(self._closer)
        owned = (self._comm,) if self._owns_comm else ()
        self._closer = closing(self, made, *owned)
        self._settings = Settings(self.param_groups)
        self._frozen = [
            place
            for place in all_parameters(self.param_groups)
            if not place.tensor.requires_grad
        ]
        # Never empty: torch.distributed.checkpoint would take a step to fill it.
        self.state.clear()
        for place in places:
            self.state[place.tensor]["step"] = self._step_tensor
        _log.forward(self._comm)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group. After the constructor collective, and only before the first step:
        all arrays are made anew.

        Raises FailedPrecondition after a step.
        """
        if self._native is None:
            if "params" not in param_group:
                raise InvalidArgument(
                    f"params: a group must have 'params', got {sorted(param_group)}"
                )
            super().add_param_group(param_group)
            return
        before = len(self.param_groups)

        def add() -> None:
            self._require_no_step("add_param_group")
            torch.optim.Optimizer.add_param_group(self, param_group)

        try:
            agreed(self._comm, add)
            self._build()
        except BaseException:
            del self.param_groups[before:]
            raise

    @property
    def max_grad_norm(self) -> float:
        """The global norm that gradients are clipped to; 0: never."""
        return float(self._made.config.gradient_clipping)

    def set_max_grad_norm(self, max_grad_norm: float) -> None:
        """Collective: as the argument of the constructor, for who knows it later.

        Raises FailedPrecondition after a step, and InvalidArgument unless finite, >= 0.
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
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Collective: averages the ranks' gradients or momenta and updates parameters.

        `closure` computes the loss anew and returns it, as this does. A parameter
        without gradient counts as one whose gradient is 0. What gradients hold
        afterwards is unspecified. `report` says what was done.

        Values that the program has written into parameters since the last step count, on
        all ranks the same ones. Where ranks differ (0/1 Adam between exchanges) they must
        be written into all parameters, and what ranks did since the last exchange is
        forgotten; or call synchronize() before.

        Raises FailedPrecondition, with nothing changed, where something is not as it was
        at construction; CommFailure if a rank was lost, after which only close() is
        allowed.
        """
        native = self._made
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        given = getattr(self, "grad_scale", None)
        scale = 1.0 if given is None else float(given)
        if self._overflowed():
            self.report = StepReport.skipped(native.optimizer.phase, scale)
            self._notices.skipped(native.optimizer.steps)
            return loss
        self._require_same_parameters()
        self._edits.home()
        gradients = native.memory.take_in_gradients()
        self._settings.apply(self.param_groups, native.optimizer)
        self._edits.take_in(is_collective=True)
        done = native.optimizer.step(native.memory.params, gradients, scale)
        self.report = StepReport.of(done)
        self._written()
        self._notices.after_step(self.report, native.optimizer.steps)
        return loss

    @_disable_dynamo
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets gradients to 0 where step() reads them, whatever the argument: backward
        then writes there. `model.zero_grad()` works as well, and costs a copy."""
        self._made.memory.put_gradient_views()

    def synchronize(self) -> None:
        """Collective: makes parameters equal on all ranks, where they differ (0/1 Adam
        between exchanges); before evaluation and saving. That is an exchange more, so a
        run of 0/1 Adam with it has other bits than one without."""
        native = self._made
        self._edits.home()
        self._edits.take_in(is_collective=True)
        native.optimizer.synchronize(native.memory.params)
        self._written()

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Collective: `with optimizer.evaluation():` parameters are equal on all ranks."""
        self.synchronize()
        yield

    def close(self) -> None:
        """Local, idempotent: ends what communicates; the model stays as it is. Happens by
        itself when the optimizer is no more, and before the interpreter ends."""
        if os.getpid() == self._process:
            self._closer()

    # ---- state

    @_disable_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Local; see thinwire.optim for what is taken.

        Raises CorruptCheckpoint or InvalidArgument naming what does not fit; nothing has
        changed then.
        """
        _state.load(self, state_dict)

    def _training(self) -> Training:
        native = self._made
        self._edits.home()
        return Training(
            self._comm,
            native.layout,
            native.memory.params,
            native.optimizer,
            native.config,
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled, it holds connections; "
            "make another one and load state_dict() into it"
        )

    def share_memory(self) -> NoReturn:
        """Raises TypeError: ranks are processes with memory of their own."""
        raise TypeError(
            f"{type(self).__name__}: states are not shared between processes; each rank "
            "makes an optimizer, and state_dict() carries states"
        )

    # ---- parts of a step

    @property
    def _made(self) -> Native:
        if os.getpid() != self._process:
            raise FailedPrecondition(
                "this optimizer belongs to the process that forked this one: use it there"
            )
        native = self._native
        if native is None or not self._closer.alive:
            raise FailedPrecondition(
                "this optimizer is closed: make another one and load state_dict() into it"
            )
        return native

    @property
    def _memory(self) -> FlatMemory:
        return self._made.memory

    def _require_no_step(self, what: str) -> None:
        native = self._made.optimizer
        if native.steps or native.skipped_steps:
            raise FailedPrecondition(
                f"{what}: only before the first step, {native.steps} were taken; make "
                "another optimizer"
            )

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

    def _overflowed(self) -> bool:
        """By what a GradScaler says; the same on all ranks."""
        if not hasattr(self, "found_inf"):
            return False
        if self._comm.size > 1 and not self._found_inf_is_agreed:
            raise FailedPrecondition(
                "torch's GradScaler looks for overflows on each rank alone, so ranks "
                "would part: use thinwire.GradScaler"
            )
        return bool(self.found_inf.item())

    def _agree(self, found_inf: torch.Tensor) -> None:
        """Collective: 1 on all ranks if any has more than 0."""
        total = found_inf.detach().reshape(1).to("cpu", torch.float32).clone()
        if self._comm.size > 1:
            self._comm.all_reduce(total)
        found_inf.fill_(float(total.item() > 0))

    def _written(self) -> None:
        native = self._made
        native.memory.note_written()
        self._edits.note()
        self._step_tensor.fill_(native.optimizer.steps)

    def _loaded(self) -> None:
        """The native optimizer has taken up another state."""
        self._written()
        native = self._made.optimizer
        rates = [native.learning_rate(g) for g in range(len(self.param_groups))]
        for group, rate in zip(self.param_groups, rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._settings.told(rates)

# SPDX-License-Identifier: Apache-2.0
"""torch.optim.Optimizer over flat arrays: its construction and its parts."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import ParamsT
from torch.utils.dlpack import from_dlpack

from .. import _averages, _core, _log
from .._agreement import agreed
from .._memory import FlatMemory
from ..comm import communicator_for
from ..comm.calls import in_call
from ..errors import FailedPrecondition, InvalidArgument
from ..report import StepReport
from . import _attributes
from ._edits import Edits, Settings, set_rate
from ._experts import Experts, in_order
from ._lifetime import close_user, closing
from ._native import Native, make_config, make_native
from ._notices import Notices
from ._options import (
    GROUP_KEYS,
    OF_DEEPSPEED,
    by_name,
    defaults,
    refuse_switches,
)
from ._parameters import (
    Place,
    all_parameters,
    refuse_module,
    trainable,
    warn_of_order,
    with_names,
)
from ._telemetry import telemetry_of
from ._torch_state import ParameterState

_NO_GROUP = (
    "give process_group=, the ranks that hold the same part, or deepspeed=, an object "
    "whose mpu has get_data_parallel_group()"
)


class FlatOptimizer(torch.optim.Optimizer):
    """Groups of parameters, the native optimizer that steps on their flat memory, and
    objects that depend on both. The derived class _Optimizer adds steps and states.
    """

    _kind: ClassVar[str]
    """Name of the class in C++'s errors."""
    # Whether a checkpoint beside the result of state_dict(), which trainers save, holds
    # the states.
    _states_are_beside = False

    report: StepReport | None
    """Results of the last step; None before the first."""

    @in_call("the constructor of an optimizer")
    def __init__(
        self,
        params: ParamsT,
        *args: Any,
        **keywords: Any,
    ) -> None:
        """Makes the optimizer; help() of its class explains the arguments. Collective."""
        keywords = by_name(type(self).__name__, args, keywords)
        given = {name: keywords.pop(name, None) for name in GROUP_KEYS}
        self._native: Native | None = None
        self._closer: weakref.finalize[..., Any]
        self._process = os.getpid()
        self.report = None
        self._given = keywords
        self._mpu = getattr(keywords.get("deepspeed"), "mpu", None)
        group = keywords.get("process_group")
        if group is None:
            group = _attributes.data_parallel_group(self._mpu)
        self._has_group = group is not None
        self._owns_comm = not isinstance(group, _core.Communicator)
        self._comm = communicator_for(group, backend=keywords.get("comm_backend_name"))
        self._notices = Notices(self._comm)
        self._experts = Experts()
        self._together: _core.Communicator | None = None
        self._alike: list[int] = []
        try:
            if (whole := _attributes.model_parallel_group(self._mpu)) is not None:
                self._together = self._experts.of(whole)
            self._agreed(lambda: self._take(params, given))
            self._build()
            made = self._made
            self._notices.at_start(made.config, made.optimizer.freeze_step)
        except BaseException:
            for owned in self._owned():
                owned.close()
            raise
        without_effect = [
            key
            for key in OF_DEEPSPEED
            if key in keywords and (key != "deepspeed" or self._mpu is None)
        ]
        self._notices.of_deepspeed(without_effect)

    # ---- construction

    def _owned(self) -> list[_core.Communicator]:
        own = [self._comm] if self._owns_comm else []
        return [*self._experts.owned, *own]

    def _take(self, params: ParamsT, given: dict[str, Any]) -> None:
        refuse_switches(self._given)
        _attributes.require_mpu(self._mpu, "deepspeed.mpu")
        refuse_module(params)
        params = with_names(params)
        own = defaults(self._kind)
        for name in ("max_coeff", "min_coeff"):
            if name in own:
                given[name] = self._given.get(name)
        for name, value in given.items():
            given[name] = own[name] if value is None else value
        super().__init__(params, given)
        self._step_tensor = torch.zeros(())
        path = self._given.get("telemetry")
        self._telemetry = None if path is None else telemetry_of(path, self._comm.rank)
        self._skipped_by_scaler = 0

    def _plan(self) -> tuple[list[Place], _core.Config]:
        """Returns the parameters in their order, and the settings for C++. Local."""
        _attributes.find_experts(self.param_groups, self._mpu, self._comm.size)
        places = in_order(trainable(self.param_groups), self.param_groups)
        if self._comm.size > 1:
            if not self._has_group:
                _attributes.require_group(
                    ((p.name, p.tensor) for p in places), _NO_GROUP
                )
            _averages.require_free((place.tensor for place in places), "optimizer")
        backend = self._comm.backend
        given, groups = self._given, self.param_groups
        return places, make_config(self._kind, given, groups, places, backend)

    def _build(self) -> None:
        """Replaces the native optimizer by a new one, on all ranks or on none.
        Collective.
        """
        broadcast = self._given.get("broadcast") is not False
        self._use(agreed(self._together, lambda: self._make(broadcast)))
        self._count_once()

    def _make(self, broadcast: bool) -> Native:
        """Makes a native optimizer, on all ranks or none. Collective."""
        places, config = agreed(self._comm, self._plan)
        self._experts.join(self._comm, self.param_groups)
        if self._together is not None:
            agreed(self._comm, lambda: _attributes.require_model_parallel(config))
        return make_native(
            self._comm,
            config,
            places,
            len(self.param_groups),
            broadcast,
            self._experts,
        )

    def _agreed(self, body: Callable[[], None]) -> None:
        """Calls agreed() over the ranks of the whole model. Collective."""
        agreed(self._together, lambda: agreed(self._comm, body))

    def _count_once(self) -> None:
        """Excludes from the norm the parameters that earlier ranks of the same model
        also hold. Collective.
        """
        if self._together is None:
            return
        made = self._made
        self._alike = _attributes.counted_elsewhere(
            self._mpu, self._experts, made.places
        )
        made.optimizer.set_model_parallel(self._together, self._alike)

    def _use(self, made: Native) -> None:
        """Replaces the native optimizer. Local."""
        earlier, places = self._native, made.places
        if self._comm.rank == 0:
            warn_of_order(places)
        made.memory.attach_parameters()
        made.memory.publish()
        if self._together is not None:
            made.optimizer.set_model_parallel(self._together, self._alike)
        self._native = made
        if made.memory.is_staged and earlier is None:
            kind, hosts = type(self).__name__, made.optimizer.ranks_per_host
            self._notices.on_device(kind, hosts)
        self._edits = Edits(self._comm, made)
        if earlier is not None:
            close_user(self._closer)
        self._closer = closing(self, made, *self._owned())
        if self._comm.size > 1:
            _averages.note((p.tensor for p in places), "optimizer", self._closer)
        self._settings = Settings(self.param_groups)
        self._frozen = [
            place
            for place in all_parameters(self.param_groups)
            if not place.tensor.requires_grad
        ]
        # The state is never empty, because torch.distributed.checkpoint would take a
        # step to fill an empty one.
        self.state.clear()
        for k, place in enumerate(places):
            self.state[place.tensor] = ParameterState(
                self._step_tensor, self._moment, k
            )
        _log.forward(self._comm)

    @in_call("add_param_group()")
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group and makes all arrays anew. Allowed only before the first step.
        Collective after the constructor.

        Raises FailedPrecondition after a step.
        """
        if self._native is None:
            if "params" not in param_group:
                raise InvalidArgument(
                    f"params: a group must have 'params', got {sorted(param_group)}"
                )
            super().add_param_group(param_group)
            return
        self._require_no_step("add_param_group")
        before = len(self.param_groups)

        def add() -> None:
            torch.optim.Optimizer.add_param_group(self, param_group)

        try:
            self._agreed(add)
            self._build()
        except BaseException:
            del self.param_groups[before:]
            raise

    # ---- native parts

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

    def _moment(self, k: int, key: str) -> torch.Tensor | None:
        native = self._made
        tensor = native.places[k].tensor
        offset = native.layout.offsets[k]
        values = native.optimizer.state_elements(key, offset, tensor.numel())
        return None if values is None else from_dlpack(values).view(tensor.shape)

    def _require_no_step(self, what: str) -> None:
        native = self._made.optimizer
        if native.steps or native.skipped_steps:
            raise FailedPrecondition(
                f"{what}: only before the first step, {native.steps} were taken; make "
                "another optimizer"
            )

    def _written(self) -> None:
        native = self._made
        native.memory.publish()
        self._edits.remember()
        self._step_tensor.fill_(native.optimizer.steps)

    def _loaded(self) -> None:
        """Follows the native optimizer after it has adopted another state."""
        self._written()
        native = self._made.optimizer
        rates = [native.learning_rate(g) for g in range(len(self.param_groups))]
        for group, rate in zip(self.param_groups, rates, strict=True):
            set_rate(group, rate)
        self._settings.told(rates)

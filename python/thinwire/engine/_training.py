# SPDX-License-Identifier: Apache-2.0
"""The parts of an engine: its module, flat memory, ranks and the native engine."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

import torch

from .. import _core
from .._agreement import telling_others
from ..comm.host_group import HostGroup
from ..errors import FailedPrecondition
from ..optim._edits import undoes_edits
from ..optim._experts import Experts
from ..optim._lifetime import closing
from ..report import EngineReport
from ._build import Plan, link_for
from ._hooks import FOREIGN
from ._memory import EngineMemory
from ._others import ModuleBuffers, ModuleOthers
from .leaders import Core

_INSIDE = (
    "parameters were changed inside a window of accumulation, which step() would undo: "
    "make any other change to them after step() at a boundary"
)
_BETWEEN_EXCHANGES = (
    "parameters were changed between two exchanges, when ranks differ, and the "
    "next one would undo it: change them inside `with engine.evaluation():`, or by "
    "engine.load_module_state_dict()"
)


class Training:
    """The parts of one engine, and the checks before its calls."""

    def __init__(
        self,
        module: torch.nn.Module,
        plan: Plan,
        comm: _core.Communicator,
        together: _core.Communicator | None,
        hosts: HostGroup | None,
        experts: Experts,
        owned: tuple[_core.Communicator, ...],
        parts: tuple[Core, EngineMemory, ModuleBuffers],
    ) -> None:
        """Takes the results of make_parts(), and the communicators that close() closes.
        Local.
        """
        self.module, self.config, self.client = module, plan.config, plan.client
        self.comm = comm
        self.together = together
        """Ranks that together hold one model, according to the mpu."""
        self.hosts = hosts
        """Ranks of this host if their leader makes the steps."""
        self.native, self.memory, self.buffers = parts
        self.process = os.getpid()
        self.close = closing(self, self.native, *owned)
        self.report: EngineReport | None = None
        self.backwards = 0
        """Number of backwards since the last boundary."""
        self.is_behind = False
        """Whether parameters differ between ranks after local steps since the last
        exchange.
        """
        self.marks = self.memory.marks() if undoes_edits(plan.config) else None
        """Hashes of the parameters, or None unless a step overwrites parameters from
        other memory.
        """
        self.link = link_for(self.native, self.memory, plan.config)
        parameters, names = self.memory.parameters, self.memory.names
        self.others = ModuleOthers(module, parameters, names, comm.rank)
        self.native.set_others(self.others.describe)
        self._told = (comm, *experts.all)
        self._left_out = set(plan.left_out)

    @property
    def made(self) -> Core:
        """The native engine. Raises FailedPrecondition after destroy(), and in a forked
        process.
        """
        if os.getpid() != self.process:
            raise FailedPrecondition(
                "this engine belongs to the process that forked this one: use it there"
            )
        if not self.close.alive:
            raise FailedPrecondition("this engine is destroyed: make another one")
        return self.native

    @property
    def is_sharded(self) -> bool:
        return self.config.zero.stage > 0

    @property
    def has_dynamic_scale(self) -> bool:
        precision = self.config.precision
        is_fp16 = precision.dtype == _core.DType.float16
        return is_fp16 and precision.loss_scale.dynamic

    def telling_others(self, call: str) -> AbstractContextManager[None]:
        return telling_others(self._told, call)

    def require_own_gradients(self) -> None:
        if self.link.has_foreign_gradients:
            raise FailedPrecondition(FOREIGN)

    def require_same_parameters(self, at_start: bool) -> None:
        self.require_own_gradients()
        self.memory.read_parameters()
        self.memory.require_gradients(at_start)
        if at_start:
            self._require_same_objects()

    def take_in_edits(self) -> None:
        """Takes over values that the program has written into parameters since the last
        step. Local.

        Raises FailedPrecondition inside a window, and if ranks differ.
        """
        if self.marks is None or not self.marks.have_changed():
            return
        if self.backwards:
            self.comm.give_up(_INSIDE)  # other ranks may already be in this step
            raise FailedPrecondition(_INSIDE)
        if self.is_behind:
            raise FailedPrecondition(_BETWEEN_EXCHANGES)
        self.native.read_masters(True)  # makes masters from the written values
        self.marks.remember()

    def written(self, is_behind: bool) -> None:
        self.memory.publish()
        self.is_behind = is_behind
        if self.marks is not None:
            self.marks.remember()

    def _require_same_objects(self) -> None:
        """Raises FailedPrecondition naming a parameter that was added or removed."""
        trained = {id(p): n for p, n in zip(self.memory.parameters, self.memory.names)}
        for name, parameter in self.module.named_parameters():
            if not parameter.requires_grad or name in self._left_out:
                continue
            if trained.pop(id(parameter), None) is None:
                raise FailedPrecondition(
                    f"parameter '{name}' was added or unfrozen after the engine was made, "
                    "or replaced (load_state_dict with assign=True): make a new one"
                )
        if trained:
            name = next(iter(trained.values()))
            raise FailedPrecondition(
                f"parameter '{name}' was frozen or removed after the engine was made: "
                "make a new one"
            )

    def read_masters(self) -> None:
        """Takes over parameters that the program has replaced between two windows.
        Local.
        """
        self.memory.make_writable()
        self.made.read_masters()
        self.written(is_behind=False)

    def require_no_window(self, call: str) -> None:
        """Raises FailedPrecondition inside a window, whose gradients the call would lose."""
        if self.backwards:
            raise FailedPrecondition(
                f"{call}: the gradients of {self.backwards} backward(s) would be lost; "
                "engine.step() sets gradients to 0: remove that call"
            )

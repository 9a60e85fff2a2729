# SPDX-License-Identifier: Apache-2.0
"""Common base of all parts of an Engine."""

from __future__ import annotations

import os
import weakref
from typing import Any

import torch
from torch.utils.data import DataLoader

from .. import _core
from .._memory import Marks
from ..comm.host_group import HostGroup
from ..errors import FailedPrecondition
from ..report import EngineReport
from ._client import Client
from ._hooks import FOREIGN, Link
from ._memory import EngineMemory
from ._optimizer import EngineOptimizer
from ._others import ModuleBuffers, ModuleOthers
from ._progress import Monitoring, Progress
from .leaders import Core

_INSIDE = (
    "parameters were changed inside a window of accumulation, which step() would undo: "
    "what is to change them comes after step() at a boundary"
)
_BETWEEN_EXCHANGES = (
    "parameters were changed between local steps, when ranks differ, and the "
    "next exchange would undo it: change them inside `with engine.evaluation():`, or by "
    "engine.load_module_state_dict()"
)


class EngineBase(torch.nn.Module):
    """Members of an Engine, and the checks that come before its calls."""

    module: torch.nn.Module
    optimizer: EngineOptimizer
    lr_scheduler: Any
    training_dataloader: DataLoader[Any] | None
    report: EngineReport | None
    """Results of the last step(); None before the first."""
    device: torch.device
    global_rank: int
    local_rank: int
    world_size: int
    dp_world_size: int
    global_steps: int
    """Windows of accumulation that were completed, including skipped steps."""
    micro_steps: int
    """Calls of step()."""
    global_samples: int

    _process: int
    _comm: _core.Communicator
    _config: _core.Config
    _native: Core
    _hosts: HostGroup | None
    """Ranks of this host if their leader makes the steps."""
    _client: Client | None
    _batch: tuple[int, int, int]
    _memory: EngineMemory
    _marks: Marks | None
    """Sums of the parameters that a step would overwrite from other memory; None if it
    does not.
    """
    _is_behind: bool
    """Whether ranks differ, by local steps since the last exchange."""
    _link: Link
    _others: ModuleOthers
    _buffers_of_module: ModuleBuffers
    _progress: Progress
    _monitoring: Monitoring
    _left_out: set[str]
    _own_scheduler: bool
    _backwards: int
    """Number of backwards since the last boundary."""
    _close: weakref.finalize[..., Any]

    @property
    def _made(self) -> Core:
        if os.getpid() != self._process:
            raise FailedPrecondition(
                "this engine belongs to the process that forked this one: use it there"
            )
        if not self._close.alive:
            raise FailedPrecondition("this engine is destroyed: make another one")
        return self._native

    def _require_same_parameters(self, at_start: bool) -> None:
        if self._link.has_foreign_gradients:
            raise FailedPrecondition(FOREIGN)
        self._memory.look()
        self._memory.require_gradients(at_start)
        if at_start:
            self._require_same_objects()

    def _take_in_edits(self) -> None:
        """Follows writes since the last step. Raises FailedPrecondition in a window."""
        if self._marks is None or not self._marks.have_changed():
            return
        if self._backwards:
            self._comm.give_up(_INSIDE)  # other ranks may already be in this step
            raise FailedPrecondition(_INSIDE)
        if self._is_behind:
            raise FailedPrecondition(_BETWEEN_EXCHANGES)
        self._native.read_masters()
        self._marks.remember()

    def _written(self, is_behind: bool) -> None:
        self._memory.note_written()
        self._is_behind = is_behind
        if self._marks is not None:
            self._marks.remember()

    def _require_same_objects(self) -> None:
        """Raises FailedPrecondition naming a parameter that was added or removed."""
        trained = {
            id(p): n for p, n in zip(self._memory.parameters, self._memory.names)
        }
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

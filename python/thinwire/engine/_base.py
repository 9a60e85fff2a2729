# SPDX-License-Identifier: Apache-2.0
"""Common base of all parts of an Engine: its members, seen as its module, and getters."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from .. import _core
from .._agreement import agreed
from .._memory import Marks
from ..comm.calls import in_call
from ..comm.host_group import HostGroup
from ..errors import FailedPrecondition, Unavailable
from ..optim._notices import RunTotals
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
    "parameters were changed between two exchanges, when ranks differ, and the "
    "next one would undo it: change them inside `with engine.evaluation():`, or by "
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
    _together: _core.Communicator | None
    """Ranks that hold one model together, by the mpu."""
    _client: Client | None
    _batch: tuple[int, int, int]
    _memory: EngineMemory
    _marks: Marks | None
    """Hashes of the parameters that a step would overwrite from other memory; None if it
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
    _split: list[int]
    """See Plan.split."""
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

    def _require_own_gradients(self) -> None:
        if self._link.has_foreign_gradients:
            raise FailedPrecondition(FOREIGN)

    def _require_same_parameters(self, at_start: bool) -> None:
        self._require_own_gradients()
        self._memory.read_parameters()
        self._memory.require_gradients(at_start)
        if at_start:
            self._require_same_objects()

    def _take_in_edits(self) -> None:
        """Follows what the program has written into parameters since the last step.
        Local.

        Raises FailedPrecondition inside a window, and if ranks differ.
        """
        if self._marks is None or not self._marks.have_changed():
            return
        if self._backwards:
            self._comm.give_up(_INSIDE)  # other ranks may already be in this step
            raise FailedPrecondition(_INSIDE)
        if self._is_behind:
            raise FailedPrecondition(_BETWEEN_EXCHANGES)
        self._native.read_masters(True)  # of what was written
        self._marks.remember()

    def _written(self, is_behind: bool) -> None:
        self._memory.publish()
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

    # ---- seen as its module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            modules = self.__dict__.get("_modules", {})
            if name != "module" and "module" in modules:
                return getattr(modules["module"], name)
            raise

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        """Returns the module's parameters."""
        return self.module.parameters(recurse)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Returns the module's parameters with the module's names."""
        return self.module.named_parameters(prefix, recurse, remove_duplicate)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Returns the module's state dict."""
        state: dict[str, Any] = self.module.state_dict(*args, **kwargs)
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Loads weights like load_module_state_dict(). Raises FailedPrecondition for
        `assign`.
        """
        if assign:
            raise FailedPrecondition(
                "load_state_dict: assign=True would replace the parameters that the "
                "engine trains; leave it out"
            )
        return self.load_module_state_dict(state_dict, strict)

    def module_state_dict(
        self,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
        exclude_frozen_parameters: bool = False,
    ) -> dict[str, Any]:
        """Returns the module's state_dict(), without frozen parameters if asked. Local."""
        state: dict[str, Any] = self.module.state_dict(
            destination=destination,  # type: ignore[arg-type]
            prefix=prefix,
            keep_vars=keep_vars,
        )
        if exclude_frozen_parameters:
            for name, parameter in self.module.named_parameters(remove_duplicate=False):
                if not parameter.requires_grad:
                    state.pop(prefix + name, None)
        return state

    @in_call("load_module_state_dict()")
    def load_module_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        custom_load_fn: Any = None,
        fetch_z3_params: bool = False,
    ) -> Any:
        """Loads weights into the module and into masters; moments do not change. Between
        windows, with the same values on all ranks. Local; with ZeRO collective.

        Raises FailedPrecondition inside a window of accumulation, and Unavailable for
        `custom_load_fn`.
        """
        if custom_load_fn is not None:
            raise Unavailable("custom_load_fn: must be None, it is not supported")
        if self._backwards:
            raise FailedPrecondition(
                "load_module_state_dict: inside a window of accumulation; call step() first"
            )

        def take() -> Any:
            return self.module.load_state_dict(state_dict, strict)

        is_collective = self._config.zero.stage > 0
        result = agreed(self._comm, take) if is_collective else take()
        self._memory.make_writable()
        self._native.read_masters()
        self._written(is_behind=False)
        return result

    # ---- values by DeepSpeed's names; all of it is local

    def gradient_accumulation_steps(self) -> int:
        """Returns the number of backwards per step."""
        return self._batch[2]

    def train_batch_size(self) -> int:
        """Returns the samples per step of all ranks; 0 if the configuration has no
        number.
        """
        return self._batch[0]

    def train_micro_batch_size_per_gpu(self) -> int:
        """Returns the samples per backward of one rank; 0 if the configuration has no
        number.
        """
        return self._batch[1]

    def get_batch_info(self) -> tuple[int, int, int]:
        """Returns train_batch_size, train_micro_batch_size_per_gpu and
        gradient_accumulation_steps.
        """
        return self._batch

    def get_lr(self) -> list[float]:
        """Returns the learning rates of the next step, one per group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        """Returns the betas, one pair per group. For an optimizer without betas,
        returns its momentum, or 0.
        """
        return [
            tuple(group["betas"]) if "betas" in group else group.get("momentum", 0.0)
            for group in self.optimizer.param_groups
        ]

    @property
    def totals(self) -> RunTotals:
        """Traffic of this rank in this run, and what compression has saved."""
        return self._progress.run.totals

    def get_global_grad_norm(self) -> float | None:
        """Returns the L2 norm of the last step's averaged gradient before clipping.
        Returns None before the first step. In compressed steps it is an estimate; see
        `report`.
        """
        return None if self.report is None else self.report.grad_norm

    def loss_scale(self) -> float:
        """Returns the factor on the next loss; 1 unless parameters are fp16."""
        return self._native.loss_scale

    @property
    def cur_scale(self) -> float:
        """Returns loss_scale()."""
        return self._native.loss_scale

    def was_step_applied(self) -> bool:
        """Returns whether the last step() updated parameters: it was at a boundary, and
        not skipped.
        """
        return self.report is not None and self.report.applied

    def is_gradient_accumulation_boundary(self) -> bool:
        """Returns whether the next step() takes effect after this backward, or did
        after the last.
        """
        return self._native.is_boundary

    def zero_optimization(self) -> bool:
        """Returns whether states are sharded."""
        return self._config.zero.stage > 0

    def zero_optimization_stage(self) -> int:
        """Returns the stage: 0, 1 or 2."""
        return self._config.zero.stage

    def zero_cpu_offload(self) -> bool:
        """Returns whether masters and states are updated in host memory."""
        asked = self._config.zero.offload_optimizer != _core.OffloadDevice.none
        return asked or self.device.type != "cpu"

    def fp16_enabled(self) -> bool:
        """Returns whether parameters are float16."""
        return self._config.precision.dtype == _core.DType.float16

    def bfloat16_enabled(self) -> bool:
        """Returns whether parameters are bfloat16."""
        return self._config.precision.dtype == _core.DType.bfloat16

    def gradient_clipping(self) -> float:
        """Returns the global norm to which gradients are clipped; 0 for no clipping."""
        return self._config.gradient_clipping

    def dynamic_loss_scale(self) -> bool:
        """Returns whether the loss scale changes from step to step."""
        return self.fp16_enabled() and self._config.precision.loss_scale.dynamic

    def steps_per_print(self) -> int:
        """Returns the steps per line of the log; 0 for no lines."""
        return self._config.steps_per_print

    def optimizer_name(self) -> str:
        """Returns a name such as "adam" or "onebit_adam". For a client optimizer this
        is the name of its class.
        """
        if self._client is not None:
            return type(self._client.optimizer).__name__
        return self._config.optimizer_name()

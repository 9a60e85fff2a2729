# SPDX-License-Identifier: Apache-2.0
"""Functions with the names of deepspeed.utils and deepspeed.runtime.utils.

Each function for whole values takes a parameter tensor of a module that an engine of
thinwire.initialize() trains, and calls the Engine's method. With ZeRO these functions
are collective. They raise InvalidArgument for a tensor that no engine trains.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from . import _core
from ._agreement import agreed, gathered
from .comm import communicator_for
from .engine._values import values_of
from .optim._attributes import model_parallel_group

__all__ = [
    "CheckOverflow",
    "get_global_norm",
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_grad",
    "safe_set_full_optimizer_state",
    "see_memory_usage",
]


def safe_get_full_fp32_param(param: torch.Tensor) -> torch.Tensor:
    """Calls Engine.full_parameter()."""
    return values_of(param).full_parameter(param)


def safe_get_full_grad(param: torch.Tensor) -> torch.Tensor:
    """Calls Engine.full_gradient(), only with ZeRO and between a window's last backward
    and step().
    """
    return values_of(param).full_gradient(param)


def safe_get_full_optimizer_state(
    param: torch.Tensor, optim_state_key: str
) -> torch.Tensor:
    """Calls Engine.full_state(), for "exp_avg" and "exp_avg_sq"."""
    return values_of(param).full_state(param, optim_state_key)


def safe_set_full_fp32_param(param: torch.Tensor, value: torch.Tensor) -> None:
    """Calls Engine.set_full_parameter(). All ranks pass the same value."""
    values_of(param).set_full_parameter(param, value)


def safe_set_full_grad(param: torch.Tensor, value: torch.Tensor) -> None:
    """Calls Engine.set_full_gradient(), only with ZeRO. All ranks pass the same value."""
    values_of(param).set_full_gradient(param, value)


def safe_set_full_optimizer_state(
    param: torch.Tensor, value: torch.Tensor, optim_state_key: str
) -> None:
    """Calls Engine.set_full_state(), only with ZeRO. All ranks pass the same value."""
    values_of(param).set_full_state(param, optim_state_key, value)


def see_memory_usage(message: str, force: bool = False) -> None:
    """Prints `message` and the bytes of Engine.memory_use() of this thread, if `force`
    is true. Local.
    """
    if force:
        use = ", ".join(f"{k} {v}" for k, v in _core.memory_use().items())
        print(f"{message}: bytes of this rank: {use}", flush=True)


def get_global_norm(norm_list: Iterable[float]) -> float:
    """Returns the L2 norm of values whose parts have these norms. Local."""
    return math.hypot(*map(float, norm_list))


class CheckOverflow:
    """Checks whether a gradient is not finite on any rank that holds the model."""

    def __init__(
        self,
        param_groups: Iterable[Iterable[torch.Tensor]] | None = None,
        mpu: Any = None,
        zero_reduce_scatter: bool = False,
        deepspeed: Any = None,
    ) -> None:
        """Joins the ranks of the model-parallel group of `mpu`, or all ranks if there
        is no such group. Collective. `param_groups` are lists of parameters for
        check(). The other arguments exist for DeepSpeed's scripts and have no effect.
        """
        self._params = [p for group in param_groups or () for p in group]
        group = model_parallel_group(mpu)
        self._comm = communicator_for(group)
        if self._comm is not group:
            weakref.finalize(self, self._comm.close)

    def check(
        self, param_groups: Iterable[Iterable[torch.Tensor]] | None = None
    ) -> bool:
        """Returns has_overflow() for lists of parameters, by default the lists of the
        constructor. Collective.
        """
        if param_groups is None:
            return self.has_overflow(self._params)
        return self.has_overflow([p for group in param_groups for p in group])

    def has_overflow(self, params: Iterable[torch.Tensor]) -> bool:
        """Returns whether a gradient of the parameters is not finite on any rank.
        Collective. If a gradient cannot be read on one rank, all ranks raise.
        """

        def look() -> bool:
            grads = [p.grad for p in params if p.grad is not None]
            return not all(bool(grad.isfinite().all()) for grad in grads)

        return "True" in gathered(self._comm, str(agreed(self._comm, look)))

# SPDX-License-Identifier: Apache-2.0
"""Functions with the names of deepspeed.utils for whole values.

Each takes a parameter tensor of a module that an engine of thinwire.initialize()
trains, and calls the Engine's method. With ZeRO they are collective. They raise
InvalidArgument for a tensor that no engine trains.
"""

from __future__ import annotations

import torch

from .engine._values import engine_of

__all__ = [
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_grad",
    "safe_set_full_optimizer_state",
]


def safe_get_full_fp32_param(param: torch.Tensor) -> torch.Tensor:
    """Calls Engine.full_parameter()."""
    return engine_of(param).full_parameter(param)


def safe_get_full_grad(param: torch.Tensor) -> torch.Tensor:
    """Calls Engine.full_gradient(): with ZeRO, between a window's last backward and
    step().
    """
    return engine_of(param).full_gradient(param)


def safe_get_full_optimizer_state(
    param: torch.Tensor, optim_state_key: str
) -> torch.Tensor:
    """Calls Engine.full_state(), for "exp_avg" and "exp_avg_sq"."""
    return engine_of(param).full_state(param, optim_state_key)


def safe_set_full_fp32_param(param: torch.Tensor, value: torch.Tensor) -> None:
    """Calls Engine.set_full_parameter(). All ranks pass the same value."""
    engine_of(param).set_full_parameter(param, value)


def safe_set_full_grad(param: torch.Tensor, value: torch.Tensor) -> None:
    """Calls Engine.set_full_gradient(), only with ZeRO. All ranks pass the same value."""
    engine_of(param).set_full_gradient(param, value)


def safe_set_full_optimizer_state(
    param: torch.Tensor, value: torch.Tensor, optim_state_key: str
) -> None:
    """Calls Engine.set_full_state(), only with ZeRO. All ranks pass the same value."""
    engine_of(param).set_full_state(param, optim_state_key, value)

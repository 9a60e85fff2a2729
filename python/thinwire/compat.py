# SPDX-License-Identifier: Apache-2.0
"""Functions with the names that DeepSpeed's deepspeed.utils has for whole values.

Each takes a parameter of a module that an engine of thinwire.initialize trains, as the
tensor, and does what the Engine's method of the other name does; with ZeRO they are
collective. InvalidArgument for a tensor that no engine trains.
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
    """Engine.full_parameter()."""
    return engine_of(param).full_parameter(param)


def safe_get_full_grad(param: torch.Tensor) -> torch.Tensor:
    """Engine.full_gradient(): with ZeRO, between a window's last backward and step()."""
    return engine_of(param).full_gradient(param)


def safe_get_full_optimizer_state(
    param: torch.Tensor, optim_state_key: str
) -> torch.Tensor:
    """Engine.full_state(), of "exp_avg" and "exp_avg_sq"."""
    return engine_of(param).full_state(param, optim_state_key)


def safe_set_full_fp32_param(param: torch.Tensor, value: torch.Tensor) -> None:
    """Engine.set_full_parameter(); all ranks give the same value."""
    engine_of(param).set_full_parameter(param, value)


def safe_set_full_grad(param: torch.Tensor, value: torch.Tensor) -> None:
    """Engine.set_full_gradient(), with ZeRO only; all ranks give the same value."""
    engine_of(param).set_full_gradient(param, value)


def safe_set_full_optimizer_state(
    param: torch.Tensor, value: torch.Tensor, optim_state_key: str
) -> None:
    """Engine.set_full_state(), with ZeRO only; all ranks give the same value."""
    engine_of(param).set_full_state(param, optim_state_key, value)

# SPDX-License-Identifier: Apache-2.0
"""Conversion of initialize()'s optimizers into settings of a configuration."""

from __future__ import annotations

import copy
from typing import Any

import torch

from .. import _core
from .._log import logger
from ..errors import FailedPrecondition, InvalidArgument
from ..optim._base import _Optimizer
from ._client import Client

_OTHERWISE = ("amsgrad", "maximize", "capturable", "differentiable")
_ADAMS = (torch.optim.Adam, torch.optim.AdamW)


def take_over(
    optimizer: Any, parameters: Any, config: _core.Config, rank: int
) -> tuple[torch.optim.Optimizer, Client | None]:
    """Writes the optimizer's settings into `config`; others than ours get a Client."""
    if not isinstance(optimizer, torch.optim.Optimizer) and callable(optimizer):
        optimizer = optimizer(parameters)
    if isinstance(optimizer, _Optimizer):
        _of_ours(optimizer, config)
    elif not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer)
        raise InvalidArgument(
            f"optimizer: {kind.__module__}.{kind.__qualname__} is no optimizer; give one "
            "of thinwire's or of torch's, or name one in the configuration "
            '("optimizer": {"type": "OneBitAdam"})'
        )
    elif type(optimizer) in _ADAMS and not _has_more(optimizer):
        _of_torch(optimizer, config, rank)
    else:
        client = Client(optimizer)
        client.tell(config)
        if rank == 0:
            logger.info(
                "optimizer: %s makes its own steps, of exact averages", client.name
            )
        return optimizer, client
    return optimizer, None


def _has_more(adam: torch.optim.Optimizer) -> bool:
    return any(group.get(key) for group in adam.param_groups for key in _OTHERWISE)


def _of_ours(optimizer: _Optimizer, config: _core.Config) -> None:
    optimizer._require_no_step("initialize")
    own = optimizer._made.config
    options = copy.copy(own.optimizer)
    options.groups = []
    config.optimizer = options
    config.lagged_clipping = own.lagged_clipping
    if own.gradient_clipping > 0:
        config.gradient_clipping = own.gradient_clipping
    config.comm = own.comm
    config.precision.check_grad_overflow = own.precision.check_grad_overflow
    optimizer.close()


def _of_torch(
    optimizer: torch.optim.Optimizer, config: _core.Config, rank: int
) -> None:
    if optimizer.state:
        raise FailedPrecondition(
            "optimizer: it has made steps, and its moments would be lost; give it before "
            "the first step"
        )
    first = optimizer.param_groups[0]
    options = _core.AdamOptions()
    options.learning_rate = float(first["lr"])
    options.beta1, options.beta2 = first["betas"]
    options.epsilon = first["eps"]
    options.weight_decay = first["weight_decay"]
    decoupled = {_is_decoupled(optimizer, group) for group in optimizer.param_groups}
    if len(decoupled) > 1:
        raise InvalidArgument(
            "optimizer: decoupled_weight_decay must be the same in all groups"
        )
    options.decoupled_decay = decoupled.pop()
    config.optimizer = options
    if rank == 0:
        logger.info(
            "optimizer: torch's %s becomes Thinwire's, with the same settings",
            type(optimizer).__name__,
        )


def _is_decoupled(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    if isinstance(optimizer, torch.optim.AdamW):
        return True
    return bool(group.get("decoupled_weight_decay", False))

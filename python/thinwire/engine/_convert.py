# SPDX-License-Identifier: Apache-2.0
"""Optimizers that initialize() is given, as settings of a configuration."""

from __future__ import annotations

import copy
from typing import Any

import torch

from .. import _core
from .._log import logger
from ..errors import FailedPrecondition, InvalidArgument
from ..optim._base import _Optimizer
from ._groups import Groups

_REFUSED = ("amsgrad", "maximize", "capturable", "differentiable")
_ADAMS = (torch.optim.Adam, torch.optim.AdamW)


def take_over(
    optimizer: Any, parameters: Any, config: _core.Config, rank: int
) -> Groups:
    """Collective where `optimizer` makes one of Thinwire's: writes its settings into
    `config`, and returns its groups, which stay its own: what changes them changes the
    engine's. An optimizer of Thinwire's is closed.

    Raises InvalidArgument naming what is none of Thinwire's, or what cannot be converted,
    and FailedPrecondition if it has made steps.
    """
    if not isinstance(optimizer, torch.optim.Optimizer) and callable(optimizer):
        optimizer = optimizer(parameters)
    if isinstance(optimizer, _Optimizer):
        _of_ours(optimizer, config)
    elif type(optimizer) in _ADAMS:
        _of_torch(optimizer, config, rank)
    else:
        kind = type(optimizer)
        raise InvalidArgument(
            f"optimizer: {kind.__module__}.{kind.__qualname__} is none that Thinwire has; "
            "give one of thinwire's, torch.optim.Adam or AdamW, or name one in the "
            'configuration ("optimizer": {"type": "OneBitAdam"})'
        )
    groups: Groups = optimizer.param_groups
    return groups


def _of_ours(optimizer: _Optimizer, config: _core.Config) -> None:
    optimizer._require_no_step("initialize")
    own = optimizer._made.config
    options = copy.copy(own.optimizer)
    options.groups = []
    config.optimizer = options
    config.semantics = own.semantics
    config.calibrated_clipping = own.calibrated_clipping
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
    for number, group in enumerate(optimizer.param_groups):
        for key in _REFUSED:
            if group.get(key):
                raise InvalidArgument(
                    f"optimizer: param_groups[{number}]['{key}'] must be False, it is not "
                    "supported"
                )
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

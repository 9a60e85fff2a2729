# SPDX-License-Identifier: Apache-2.0
"""Groups of parameters, from the arguments of initialize() to the settings of C++."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .. import _core
from .._log import logger
from ..errors import FailedPrecondition, InvalidArgument
from ..optim import _native, _parameters
from ..optim._parameters import Place

Groups = list[dict[str, Any]]

_GROUP_KEYS = ("lr", "betas", "eps", "weight_decay", *_native.FIXED_KEYS, _native.MASK)


def groups_of(model: torch.nn.Module, model_parameters: Any) -> Groups:
    """Returns groups of the model's parameters. Local. `model_parameters` holds
    tensors, (name, tensor) pairs or dicts as in torch.optim. None means all parameters
    of the model. The caller's dicts do not change.

    Raises InvalidArgument for a tensor that is no parameter of the model, and TypeError
    for values of another type.
    """
    if model_parameters is None:
        model_parameters = model.parameters()
    _parameters.refuse_module(model_parameters)
    if isinstance(model_parameters, (torch.Tensor, dict)):
        raise TypeError(
            "model_parameters: must be an iterable of parameters or of groups, got one "
            f"{type(model_parameters).__name__}"
        )
    given = list(model_parameters)
    if not given or not isinstance(given[0], dict):
        given = [{"params": given}]
    else:
        given = [dict(g) if isinstance(g, dict) else g for g in given]
    names = {id(p): name for name, p in model.named_parameters()}
    for number, group in enumerate(given):
        if not isinstance(group, dict) or "params" not in group:
            raise TypeError(
                f"model_parameters[{number}]: must be a dict with 'params', as the others"
            )
        tensors = _tensors(group["params"])
        for tensor in tensors:
            if id(tensor) not in names:
                raise InvalidArgument(
                    f"model_parameters: a parameter of shape {tuple(tensor.shape)} in "
                    f"group {number} is none of the model's"
                )
        group["params"] = tensors
        group["param_names"] = [names[id(tensor)] for tensor in tensors]
    return given


def trainable(groups: Groups) -> list[Place]:
    """Returns the distinct parameters that require a gradient, in the order of their
    groups.

    Raises InvalidArgument naming a parameter that an engine cannot train, and
    FailedPrecondition if no parameter requires a gradient.
    """
    places = list(_parameters.distinct(groups))
    for place in places:
        _parameters._require_supported(place, None)
        _parameters.require_same_device(place, places[0])
    if not places:
        raise FailedPrecondition(
            "model: no parameter requires a gradient, so there is nothing to train"
        )
    return places


def left_out(model: torch.nn.Module, places: list[Place]) -> list[str]:
    """Returns the names of the model's trainable parameters that are in no group."""
    trained = {id(place.tensor) for place in places}
    return [
        name
        for name, p in model.named_parameters()
        if p.requires_grad and id(p) not in trained
    ]


def defaults_of(config: _core.Config) -> dict[str, Any]:
    own = config.keywords()
    keys = ("lr", "betas", "eps", "weight_decay", "max_coeff", "min_coeff")
    return {key: own[key] for key in keys if key in own}


def tell_groups(config: _core.Config, groups: Groups, places: list[Place]) -> None:
    """Writes the groups' settings into the configuration's optimizer. Local.

    Raises InvalidArgument naming the group and the key.
    """
    _native.require_own_keys(groups, config)
    plain = len(groups) == 1 and not any(key in groups[0] for key in _GROUP_KEYS)
    defaults = defaults_of(config)
    for group in groups:
        for key, value in defaults.items():
            group.setdefault(key, value)
    if not plain:
        _native.set_groups(config, groups, places)


def warn_of(names: list[str]) -> None:
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        logger.warning(
            "not in model_parameters, so they are not trained: %s%s",
            ", ".join(f"'{name}'" for name in names[:3]),
            more,
        )


def _tensors(params: Any) -> list[torch.Tensor]:
    if isinstance(params, torch.Tensor):
        return [params]
    if not isinstance(params, Iterable):
        raise TypeError(
            f"model_parameters: 'params' must be tensors, got {type(params).__name__}"
        )
    tensors = []
    for item in params:
        tensor = item[1] if isinstance(item, tuple) and len(item) == 2 else item
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"model_parameters: must be tensors, got {type(tensor).__name__}"
            )
        tensors.append(tensor)
    return tensors

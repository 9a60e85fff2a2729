# SPDX-License-Identifier: Apache-2.0
"""Whole values of parameters that an engine trains, regardless of the rank that owns
them.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from .._memory import require_shape
from ..errors import InvalidArgument
from ._training import Training

_BY_PARAMETER: weakref.WeakValueDictionary[int, Values] = weakref.WeakValueDictionary()
"""Values by id() of each parameter. Values keep their parameters alive."""


def values_of(parameter: torch.Tensor) -> Values:
    """Returns the values of the engine that trains `parameter`. Local. Raises
    InvalidArgument if no engine trains it.
    """
    values = _BY_PARAMETER.get(id(parameter))
    if values is None:
        is_tensor = isinstance(parameter, torch.Tensor)
        what = (
            f"a tensor of shape {tuple(parameter.shape)}"
            if is_tensor
            else f"{parameter!r:.60}"
        )
        raise InvalidArgument(
            f"param: {what} is no parameter that an engine of thinwire.initialize trains"
        )
    return values


class Values:
    """Implements Engine.full_parameter() and similar functions."""

    def __init__(self, training: Training) -> None:
        self.training = training
        for parameter in training.memory.parameters:
            _BY_PARAMETER[id(parameter)] = self

    def full_parameter(self, parameter: torch.Tensor | str) -> torch.Tensor:
        name, shape = self._named(parameter)
        return self._tensor(self.training.made.full_parameter(name), shape)

    def set_full_parameter(
        self, parameter: torch.Tensor | str, value: torch.Tensor
    ) -> None:
        name, shape = self._named(parameter)
        values = _floats(value, shape)
        self.training.memory.make_writable()
        self.training.made.set_full_parameter(name, values)
        self.training.written(is_behind=False)

    def full_gradient(self, parameter: torch.Tensor | str) -> torch.Tensor:
        name, shape = self._named(parameter)
        return self._tensor(self.training.made.full_gradient(name), shape)

    def set_full_gradient(
        self, parameter: torch.Tensor | str, value: torch.Tensor
    ) -> None:
        name, shape = self._named(parameter)
        self.training.made.set_full_gradient(name, _floats(value, shape))

    def full_state(self, parameter: torch.Tensor | str, key: str) -> torch.Tensor:
        name, shape = self._named(parameter)
        _require_key(key)
        training = self.training
        if training.client is not None:
            number = training.memory.names.index(name)
            return training.client.state_of(name, number, key)
        return self._tensor(self.training.made.full_state(name, key), shape)

    def set_full_state(
        self, parameter: torch.Tensor | str, key: str, value: torch.Tensor
    ) -> None:
        name, shape = self._named(parameter)
        _require_key(key)
        values = _floats(value, shape)
        if not bool(values.isfinite().all()):
            raise InvalidArgument(f"value: {key} of '{name}' must be finite")
        if key == "exp_avg_sq" and bool((values < 0).any()):
            raise InvalidArgument(
                f"value: {key} of '{name}' must be >= 0, got {float(values.min()):g}"
            )
        self.training.made.set_full_state(name, key, values)

    def _tensor(self, values: Any, shape: torch.Size) -> torch.Tensor:
        device = self.training.memory.parameters[0].device
        return from_dlpack(values).view(shape).to(device)

    def _named(self, parameter: torch.Tensor | str) -> tuple[str, torch.Size]:
        memory = self.training.memory
        for name, tensor in zip(memory.names, memory.parameters, strict=True):
            if parameter is tensor or (
                isinstance(parameter, str) and parameter == name
            ):
                return name, tensor.shape
        what = repr(parameter) if isinstance(parameter, str) else "this tensor"
        raise InvalidArgument(f"parameter: the engine does not train {what}")


def _require_key(key: str) -> None:
    if not isinstance(key, str):
        raise InvalidArgument(f"key: must be text, as 'exp_avg', got {key!r:.60}")


def _floats(value: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise InvalidArgument(f"value: must be a tensor, got {type(value).__name__}")
    require_shape("value", value.shape, shape)
    return value.detach().reshape(-1).to("cpu", torch.float32).contiguous()

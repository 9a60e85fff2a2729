# SPDX-License-Identifier: Apache-2.0
"""Whole values of an Engine's parameters, whoever owns them, and its memory."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from .. import _core
from .._memory import require_shape
from ..errors import InvalidArgument
from ._base import EngineBase

_ENGINES: weakref.WeakValueDictionary[int, Values] = weakref.WeakValueDictionary()
"""By id() of their parameters, which live as long as they do."""


def engine_of(parameter: torch.Tensor) -> Values:
    """Local: the engine that trains `parameter`; InvalidArgument without one."""
    engine = _ENGINES.get(id(parameter))
    if engine is None:
        is_tensor = isinstance(parameter, torch.Tensor)
        what = (
            f"a tensor of shape {tuple(parameter.shape)}"
            if is_tensor
            else f"{parameter!r:.60}"
        )
        raise InvalidArgument(
            f"param: {what} is no parameter that an engine of thinwire.initialize trains"
        )
    return engine


class Values(EngineBase):
    """full_parameter(), full_gradient(), full_state() and their setters, of Engine."""

    def _register_parameters(self) -> None:
        for parameter in self._memory.parameters:
            _ENGINES[id(parameter)] = self

    def full_parameter(self, parameter: torch.Tensor | str) -> torch.Tensor:
        """With ZeRO collective, otherwise local: a parameter's master in fp32, or the
        parameter itself if it has none; a copy in its shape. `parameter` is the tensor or
        its name; InvalidArgument if the engine does not train it."""
        name, shape = self._named(parameter)
        return self._tensor(self._made.full_parameter(name), shape)

    def set_full_parameter(
        self, parameter: torch.Tensor | str, value: torch.Tensor
    ) -> None:
        """With ZeRO collective, otherwise local; all ranks give the same value: sets the
        master and, rounded to its dtype, the parameter. 0/1 Adam forgets its updates since
        the last exchange.

        Raises InvalidArgument for a value that is no tensor of the parameter's shape.
        """
        name, shape = self._named(parameter)
        values = _floats(value, shape)
        self._memory.home()
        self._made.set_full_parameter(name, values)
        self._written(is_behind=False)

    def full_gradient(self, parameter: torch.Tensor | str) -> torch.Tensor:
        """Collective, with ZeRO only: the averaged gradient in fp32, without the loss scale
        and not clipped, between a window's last backward and step(); no backward may come
        before that step() then.

        Raises FailedPrecondition at other times and without ZeRO.
        """
        name, shape = self._named(parameter)
        return self._tensor(self._made.full_gradient(name), shape)

    def set_full_gradient(
        self, parameter: torch.Tensor | str, value: torch.Tensor
    ) -> None:
        """As full_gradient(); all ranks give the same value, which the next step() takes."""
        name, shape = self._named(parameter)
        self._made.set_full_gradient(name, _floats(value, shape))

    def full_state(self, parameter: torch.Tensor | str, key: str) -> torch.Tensor:
        """With ZeRO collective, otherwise local: a copy of a parameter's part of the
        optimizer's array `key`, "exp_avg" or "exp_avg_sq", in fp32 and in its shape. An
        optimizer of torch that makes its own steps has keys of its own.

        Raises InvalidArgument for a key that the optimizer's present stage lacks: after its
        freeze 1-bit Adam has no exp_avg_sq.
        """
        name, shape = self._named(parameter)
        _require_key(key)
        if self._client is not None:
            return self._client.state_of(name, self._memory.names.index(name), key)
        return self._tensor(self._made.full_state(name, key), shape)

    def set_full_state(
        self, parameter: torch.Tensor | str, key: str, value: torch.Tensor
    ) -> None:
        """Collective, with ZeRO only; all ranks give the same value.

        Raises InvalidArgument as set_full_parameter(), and for a value that is not finite or
        a negative exp_avg_sq.
        """
        name, shape = self._named(parameter)
        _require_key(key)
        values = _floats(value, shape)
        if not bool(values.isfinite().all()):
            raise InvalidArgument(f"value: {key} of '{name}' must be finite")
        if key == "exp_avg_sq" and bool((values < 0).any()):
            raise InvalidArgument(
                f"value: {key} of '{name}' must be >= 0, got {float(values.min()):g}"
            )
        self._made.set_full_state(name, key, values)

    def get_lamb_coeffs(self) -> list[float]:
        """Local: the factors by which the last step multiplied the learning rate of each
        parameter, in the order of the engine's parameters; LAMB's trust ratios, and in
        compressed steps 1-bit LAMB's scaling coefficients. 0 before the first step; empty
        unless the optimizer is LAMB or 1-bit LAMB."""
        return self._made.lamb_coeffs()

    def memory_use(self) -> dict[str, int]:
        """Local: bytes that this rank holds: parameters, gradients, states, buckets and
        other, and peak, the largest sum of them so far. Everything that this thread made
        counts, so another engine of the same thread does, too; activations do not."""
        use = _core.memory_use()
        for kind, size in self._link.use.items():
            use[kind] += size
        return use

    def _tensor(self, values: Any, shape: torch.Size) -> torch.Tensor:
        return from_dlpack(values).view(shape).to(self.device)

    def _named(self, parameter: torch.Tensor | str) -> tuple[str, torch.Size]:
        names, tensors = self._memory.names, self._memory.parameters
        for name, tensor in zip(names, tensors, strict=True):
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

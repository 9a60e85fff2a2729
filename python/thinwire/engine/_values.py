# SPDX-License-Identifier: Apache-2.0
"""Whole values of an Engine's parameters, whatever rank owns them, and its memory."""

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
    """Returns the engine that trains `parameter`. Local. Raises InvalidArgument if
    there is none.
    """
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
        """Returns a copy of a parameter's fp32 master, or of the parameter if it has
        none.

        The copy has the parameter's shape. `parameter` is the tensor or its name.
        Collective with ZeRO, lean 1-bit Adam and a leader per host, otherwise local. Raises
        InvalidArgument if the engine does not train it.
        """
        name, shape = self._named(parameter)
        return self._tensor(self._made.full_parameter(name), shape)

    def set_full_parameter(
        self, parameter: torch.Tensor | str, value: torch.Tensor
    ) -> None:
        """Sets the master and, rounded to its dtype, the parameter.

        Collective with ZeRO, lean 1-bit Adam and a leader per host, otherwise local. All
        ranks pass the same value. Local steps since the last exchange are discarded.

        Raises InvalidArgument for a value that is no tensor of the parameter's shape.
        """
        name, shape = self._named(parameter)
        values = _floats(value, shape)
        self._memory.make_writable()
        self._made.set_full_parameter(name, values)
        self._written(is_behind=False)

    def full_gradient(self, parameter: torch.Tensor | str) -> torch.Tensor:
        """Returns the averaged gradient in fp32, without the loss scale and not
        clipped.

        Collective; only with ZeRO. Call it between a window's last backward and step().
        No backward may follow before that step().

        Raises FailedPrecondition at other times and without ZeRO.
        """
        name, shape = self._named(parameter)
        return self._tensor(self._made.full_gradient(name), shape)

    def set_full_gradient(
        self, parameter: torch.Tensor | str, value: torch.Tensor
    ) -> None:
        """Sets the gradient that the next step() uses, under the conditions of
        full_gradient(). All ranks pass the same value.
        """
        name, shape = self._named(parameter)
        self._made.set_full_gradient(name, _floats(value, shape))

    def full_state(self, parameter: torch.Tensor | str, key: str) -> torch.Tensor:
        """Returns a copy of a parameter's part of the optimizer's array `key`.

        The copy is fp32 and has the parameter's shape. `key` is "exp_avg" or
        "exp_avg_sq". An optimizer of torch that makes its own steps has keys of its
        own. Collective with ZeRO and a leader per host, otherwise local.

        Raises InvalidArgument for a key that the optimizer's present stage lacks: after
        its freeze 1-bit Adam has no exp_avg_sq.
        """
        name, shape = self._named(parameter)
        _require_key(key)
        if self._client is not None:
            return self._client.state_of(name, self._memory.names.index(name), key)
        return self._tensor(self._made.full_state(name, key), shape)

    def set_full_state(
        self, parameter: torch.Tensor | str, key: str, value: torch.Tensor
    ) -> None:
        """Sets a parameter's part of a state. Collective, only with ZeRO; all ranks
        pass the same value.

        Raises InvalidArgument like set_full_parameter(), and for a value that is not
        finite or a negative exp_avg_sq.
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
        """Returns the factors by which the last step multiplied the learning rates.
        Local.

        There is one per parameter, in the engine's order. They are LAMB's trust ratios
        or, in compressed steps of 1-bit LAMB, its scaling coefficients. They are 0
        before the first step, and empty unless the optimizer is LAMB or 1-bit LAMB.
        """
        return self._made.lamb_coeffs()

    def memory_use(self) -> dict[str, int]:
        """Returns the bytes that this rank holds. Local.

        The keys are parameters, gradients, states, buckets, other, and peak, the
        largest sum of them so far. All memory that this thread made counts, so another
        engine of the same thread does, too. Activations do not count.
        """
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

# SPDX-License-Identifier: Apache-2.0
"""Flat arrays of which parameters and gradients are views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from . import _core
from ._log import logger
from .errors import FailedPrecondition, InvalidArgument


class Marks:
    """Hashes of flat arrays, which detect changed values. Autograd's version counters
    miss writes through numpy or `.data`. Restored values, for example after an
    evaluation with averaged parameters, do not count as changed.
    """

    def __init__(self, *flat: torch.Tensor) -> None:
        self._flat = flat
        self.remember()

    def remember(self) -> None:
        self._hashes = self._hash()

    def have_changed(self) -> bool:
        return self._hashes != self._hash()

    def _hash(self) -> list[int]:
        return [_core.checksum(array) for array in self._flat]


GRADIENT_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def require_dense(name: str, gradient: torch.Tensor) -> None:
    """Local. Raises InvalidArgument naming the parameter."""
    if gradient.layout != torch.strided:
        raise InvalidArgument(
            f"parameter '{name}': its gradient must be dense, got a sparse one; make the "
            "layer with sparse=False"
        )


def require_shape(what: str, given: torch.Size, wanted: torch.Size) -> None:
    if given != wanted:
        raise InvalidArgument(
            f"{what}: must be of shape {tuple(wanted)}, got {tuple(given)}"
        )


Handed = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""Argument of the native side: an array, or two joined ones."""


class FlatMemory:
    """One array of parameters, `params`, and one of gradients, `grads`.

    Parameter k begins at the layout's offsets[k] in both. Backward writes where a step
    reads, so nothing is copied in between. Elements between parameters are 0. If most
    parameters have 16 bits, fp32 parameters come last and have separate arrays,
    `wide_params` and `wide_grads`. The numbering of elements continues in the separate
    arrays.
    """

    is_staged = False
    """Whether parameters stay on another device."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        layout: _core.Layout,
        dtype: torch.dtype,
        keeps_gradients: bool = True,
        num_wide: int = 0,
    ) -> None:
        """Copies the parameters' values, rounded to `dtype`, except the last
        `num_wide`, which are fp32. Local. There must be at least one parameter, and all
        must be on one device. Parameters do not change until attach_parameters().
        Without `keeps_gradients` there is no array of gradients.
        """
        self.parameters = list(parameters)
        self.names = layout.names
        self.keeps_gradients = keeps_gradients
        self._offsets = layout.offsets
        self._num_wide = num_wide
        begin = self._offsets[-num_wide] if num_wide > 0 else layout.size
        wide = layout.size - begin
        self.params = self.zeros(begin, dtype)
        self.wide_params = self.zeros(wide, torch.float32)
        self._values = self._own_views(self.params, self.wide_params)
        self.grads = self.zeros(begin if keeps_gradients else 0, dtype)
        self.wide_grads = self.zeros(wide if keeps_gradients else 0, torch.float32)
        self._gradients = (
            self._own_views(self.grads, self.wide_grads) if keeps_gradients else []
        )
        for parameter, view in zip(self.parameters, self._values, strict=True):
            view.copy_(parameter.detach())
        self._notes = [
            _core.MemoryNote(kind, self.bytes_of(flat, wide))
            for kind, flat, wide in (
                (_core.MemoryKind.parameters, self.params, self.wide_params),
                (_core.MemoryKind.gradients, self.grads, self.wide_grads),
            )
        ]

    def zeros(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype)

    def bytes_of(self, *arrays: torch.Tensor) -> int:
        return sum(array.nbytes for array in arrays)

    def marks(self) -> Marks | None:
        """Returns an object that detects writes of the program into parameters."""
        return Marks(self.params, self.wide_params)

    @property
    def handed_params(self) -> Handed:
        return _handed(self.params, self.wide_params)

    @property
    def handed_grads(self) -> Handed:
        return _handed(self.grads, self.wide_grads)

    def values(self) -> torch.Tensor:
        """Returns a copy of all parameters in fp32, in one array."""
        return torch.cat([self.params.to(torch.float32), self.wide_params])

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """Returns a copy of an array like values(), rounded like the parameters."""
        narrow, wide = values.tensor_split([self.params.numel()])
        return torch.cat([narrow.to(self.params.dtype).to(torch.float32), wide])

    def _own_views(self, flat: torch.Tensor, wide: torch.Tensor) -> list[torch.Tensor]:
        first_wide = len(self.parameters) - self._num_wide
        views = []
        for k, (p, offset) in enumerate(
            zip(self.parameters, self._offsets, strict=True)
        ):
            of, begin = (wide, flat.numel()) if k >= first_wide else (flat, 0)
            views.append(of.narrow(0, offset - begin, p.numel()).view(p.shape))
        return views

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Returns views of an array of the layout's size, one in each parameter's
        shape.
        """
        return [
            flat.narrow(0, offset, p.numel()).view(p.shape)
            for p, offset in zip(self.parameters, self._offsets, strict=True)
        ]

    @torch.no_grad()
    def make_writable(self) -> bool:
        """Makes every parameter a view again, before the arrays are written. A
        parameter that was moved meanwhile (`model.to()`, `.data =`) keeps its present
        value. Returns whether there was such a parameter.

        Raises FailedPrecondition naming a parameter of another dtype, shape or kind of
        device than at first; nothing has changed then.
        """
        moved = [k for k in range(len(self.parameters)) if not self._is_attached(k)]
        for k in moved:
            self._require_same_kind(k)
        arrays = self.params, self.wide_params
        values = [_apart(self.parameters[k], self._values[k], arrays) for k in moved]
        for k, value in zip(moved, values, strict=True):
            self._values[k].copy_(value)
            self.parameters[k].data = _alone(self._values[k])
        if moved:
            logger.debug("%d parameters were moved: taken in again", len(moved))
        return bool(moved)

    def read_parameters(self) -> bool:
        """Does the same as make_writable(), before a call that does not write the arrays."""
        return self.make_writable()

    def read_written(self) -> None:
        """Copies the values that the program has written. On the CPU they are already
        in place.
        """

    def attach_parameters(self) -> None:
        """Makes parameters views of `params` with its present values. Called once."""
        for parameter, view in zip(self.parameters, self._values, strict=True):
            parameter.data = _alone(view)

    def collect_gradients(self, given: Sequence[torch.Tensor | None] = ()) -> Handed:
        """Returns this step's gradients as one array. Gradients that are views are
        already in place, missing ones count as 0, and others are copied. The array has
        the dtype of the gradients if all have the same dtype, and is fp32 if not.
        Gradients of fp32 parameters beside 16-bit parameters are fp32. `given` is empty
        or contains one entry per parameter, which replaces the parameter's own gradient
        unless the entry is None.

        Raises InvalidArgument naming a parameter whose gradient is sparse.
        """
        found = [p.grad for p in self.parameters]
        if given:
            found = [
                g if g is not None else own for g, own in zip(given, found, strict=True)
            ]
        for name, gradient in zip(self.names, found, strict=True):
            if gradient is not None:
                require_dense(name, gradient)
        narrow = found[: len(found) - self._num_wide]
        dtypes = {g.dtype for g in narrow if g is not None and g.numel() > 0}
        flat, views = self.grads, self._gradients
        if dtypes - {self.grads.dtype}:
            dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
            dtype = dtype if dtype in GRADIENT_TYPES else torch.float32
            flat = self.zeros(self.grads.numel(), dtype)
            views = self._own_views(flat, self.wide_grads)
        with torch.no_grad():
            self._fill(found, views, (flat, self.wide_grads))
        return _handed(flat, self.wide_grads)

    def _fill(
        self,
        found: Sequence[torch.Tensor | None],
        views: Sequence[torch.Tensor],
        written: Sequence[torch.Tensor],
    ) -> None:
        """Copies gradients into `views`, which lie in the arrays `written`."""
        found = [
            g if g is None else _apart(g, view, written)
            for g, view in zip(found, views, strict=True)
        ]
        for gradient, view in zip(found, views, strict=True):
            if gradient is None:
                view.zero_()
            elif not _is_same_memory(gradient, view):
                view.copy_(gradient)

    def attach_gradients(self) -> None:
        """Sets all gradients to 0, and each parameter's gradient to its view."""
        self.grads.zero_()
        self.wide_grads.zero_()
        for parameter, view in zip(self.parameters, self._gradients, strict=True):
            gradient = parameter.grad
            if gradient is None or not _is_same_memory(gradient, view):
                # The gradient is an alias, because module.to() would turn the view
                # itself into another tensor.
                parameter.grad = view.detach()

    def final_range(self) -> Callable[[int, int], None] | None:
        """Returns the function that a step calls with each range of final elements, or
        None.
        """
        return None

    def publish(self) -> None:
        """Tells autograd that all parameters have new values."""
        torch.autograd.graph.increment_version(self.parameters)

    def _is_attached(self, k: int) -> bool:
        parameter, view = self.parameters[k], self._values[k]
        return (
            parameter.data_ptr() == view.data_ptr()
            and parameter.dtype == view.dtype
            and parameter.shape == view.shape
            and parameter.is_contiguous()
        )

    def _is_same_kind(self, k: int) -> bool:
        return all(now == was for _, now, was in self._kinds(k))

    def _kinds(self, k: int) -> list[tuple[str, object, object]]:
        parameter, view = self.parameters[k], self._values[k]
        now, was = self._devices(k)
        return [
            ("dtype", parameter.dtype, view.dtype),
            ("shape", tuple(parameter.shape), tuple(view.shape)),
            ("device", now, was),
        ]

    def _require_same_kind(self, k: int) -> None:
        for what, now, was in self._kinds(k):
            if now != was:
                raise FailedPrecondition(
                    f"parameter '{self.names[k]}': its {what} was {was} when the "
                    f"optimizer was made and is {now} now; convert and move the model "
                    "first, then make the optimizer"
                )

    def _devices(self, k: int) -> tuple[str, str]:
        return self.parameters[k].device.type, "cpu"


def _handed(flat: torch.Tensor, wide: torch.Tensor) -> Handed:
    return (flat, wide) if wide.numel() > 0 else flat


def _is_same_memory(tensor: torch.Tensor, view: torch.Tensor) -> bool:
    return tensor.data_ptr() == view.data_ptr() and tensor.is_contiguous()


def _alone(view: torch.Tensor) -> torch.Tensor:
    """Returns the same memory as a separate storage with only the parameter's bytes,
    because torch.save, safetensors and Accelerate count, compare or save whole
    storages.
    """
    return from_dlpack(view)


def _apart(
    tensor: torch.Tensor, view: torch.Tensor, written: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Returns the tensor, or a copy if the tensor lies in the arrays `written` outside
    `view`, where copies of other tensors would overwrite it.
    """
    if _is_same_memory(tensor, view):
        return tensor
    at = tensor.data_ptr()
    is_inside = any(a.data_ptr() <= at < a.data_ptr() + a.nbytes for a in written)
    return tensor.clone() if is_inside else tensor


def tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the native state with its arrays as tensors, without a copy."""
    return {
        key: value if isinstance(value, (int, float, str)) else from_dlpack(value)
        for key, value in state.items()
    }

# SPDX-License-Identifier: Apache-2.0
"""Flat arrays of which parameters and gradients are views."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.dlpack import from_dlpack

from ._log import logger
from .errors import FailedPrecondition, InvalidArgument

GRADIENT_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def require_dense(name: str, gradient: torch.Tensor) -> None:
    """Local. Raises InvalidArgument naming the parameter."""
    if gradient.layout != torch.strided:
        raise InvalidArgument(
            f"parameter '{name}': its gradient must be dense, got a sparse one; make the "
            "layer with sparse=False"
        )


def require_shape(what: str, given: torch.Size, wanted: torch.Size) -> None:
    """Local. Raises InvalidArgument naming both shapes unless they are the same."""
    if given != wanted:
        raise InvalidArgument(
            f"{what}: must be of shape {tuple(wanted)}, got {tuple(given)}"
        )


class FlatMemory:
    """One array of parameters, `params`, and one of gradients, `grads`.

    Both have `size` elements of the parameters' dtype, on their device; parameter k
    begins at offsets[k]. Backward then writes where a step reads, and nothing is copied
    in between. Elements between parameters are 0.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        offsets: Sequence[int],
        size: int,
        names: Sequence[str] = (),
    ) -> None:
        """Local: copies the parameters' values; the parameters stay where they are until
        home(). At least one, all of one dtype and device."""
        self.parameters = list(parameters)
        self.names = list(names) or [f"param.{k}" for k in range(len(self.parameters))]
        first = self.parameters[0]
        self.params = torch.zeros(size, dtype=first.dtype, device=first.device)
        self.grads = torch.zeros_like(self.params)
        self._offsets = list(offsets)
        self._values = self.views(self.params)
        self._gradients = self.views(self.grads)
        for parameter, view in zip(self.parameters, self._values, strict=True):
            view.copy_(parameter.detach())

    def views(
        self, flat: torch.Tensor, offsets: Sequence[int] | None = None
    ) -> list[torch.Tensor]:
        """Every parameter's part of an array of `size` elements, in its shape."""
        return [
            flat.narrow(0, offset, p.numel()).view(p.shape)
            for p, offset in zip(
                self.parameters,
                self._offsets if offsets is None else offsets,
                strict=True,
            )
        ]

    @torch.no_grad()
    def home(self) -> bool:
        """Makes every parameter a view. One that was moved since (`model.to()`, `.data =`)
        brings its present value along; returns whether there was any.

        Raises FailedPrecondition naming a parameter of another dtype, shape or kind of
        device than at first; nothing has changed then.
        """
        moved = [k for k in range(len(self.parameters)) if not self._is_home(k)]
        for k in moved:
            self._require_same_kind(k)
        for k in moved:
            parameter, view = self.parameters[k], self._values[k]
            view.copy_(parameter)
            parameter.data = _alone(view)
        if moved:
            logger.debug("%d parameters were moved: taken in again", len(moved))
        return bool(moved)

    def give_homes(self) -> None:
        """The first time: parameters become views of the values that `params` has now."""
        for parameter, view in zip(self.parameters, self._values, strict=True):
            parameter.data = _alone(view)

    def take_in_gradients(
        self, given: Sequence[torch.Tensor | None] = ()
    ) -> torch.Tensor:
        """This step's gradients as one array: those that are views are in place, missing
        ones count as 0, others are copied. Of another dtype than the parameters where
        all are of that one, and fp32 where they differ. `given`: empty, or one for each
        parameter, which takes the place of the parameter's own unless it is None.

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
        dtypes = {g.dtype for g in found if g is not None and g.numel() > 0}
        flat, views = self.grads, self._gradients
        if dtypes - {self.grads.dtype}:
            dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
            dtype = dtype if dtype in GRADIENT_TYPES else torch.float32
            flat = torch.zeros_like(self.grads, dtype=dtype)
            views = self.views(flat)
        with torch.no_grad():
            if flat is self.grads:
                found = list(map(self._apart, found, views))
            for gradient, view in zip(found, views, strict=True):
                if gradient is None:
                    view.zero_()
                elif not _is_same_memory(gradient, view):
                    view.copy_(gradient)
        return flat

    def put_gradient_views(self) -> None:
        """Sets all gradients to 0, and each parameter's to its view."""
        self.grads.zero_()
        for parameter, view in zip(self.parameters, self._gradients, strict=True):
            gradient = parameter.grad
            if gradient is None or not _is_same_memory(gradient, view):
                # An alias: module.to() would turn the view itself into another tensor.
                parameter.grad = view.detach()

    def note_written(self) -> None:
        """Tells autograd that all parameters have new values."""
        torch.autograd.graph.increment_version(self.parameters)

    def _apart(
        self, gradient: torch.Tensor | None, view: torch.Tensor
    ) -> torch.Tensor | None:
        """A copy of what lies in `grads` at another place than `view`, which would change
        as others are copied in; else the gradient itself."""
        if gradient is None or _is_same_memory(gradient, view):
            return gradient
        start = self.grads.data_ptr()
        is_inside = start <= gradient.data_ptr() < start + self.grads.nbytes
        return gradient.clone() if is_inside else gradient

    def _is_home(self, k: int) -> bool:
        parameter, view = self.parameters[k], self._values[k]
        return (
            parameter.data_ptr() == view.data_ptr()
            and parameter.dtype == view.dtype
            and parameter.shape == view.shape
            and parameter.is_contiguous()
        )

    def _require_same_kind(self, k: int) -> None:
        parameter, view = self.parameters[k], self._values[k]
        for what, now, was in (
            ("dtype", parameter.dtype, view.dtype),
            ("shape", tuple(parameter.shape), tuple(view.shape)),
            ("device", parameter.device.type, view.device.type),
        ):
            if now != was:
                raise FailedPrecondition(
                    f"parameter '{self.names[k]}': its {what} was {was} when the "
                    f"optimizer was made and is {now} now; convert and move the model "
                    "first, then make the optimizer"
                )


def with_tensors(
    use: dict[str, int], params: torch.Tensor, grads: torch.Tensor
) -> dict[str, int]:
    """The library's memory, and torch's arrays of parameters and gradients."""
    use["parameters"] += params.nbytes
    use["gradients"] += grads.nbytes
    use["peak"] += params.nbytes + grads.nbytes
    return use


def _is_same_memory(tensor: torch.Tensor, view: torch.Tensor) -> bool:
    return tensor.data_ptr() == view.data_ptr() and tensor.is_contiguous()


def _alone(view: torch.Tensor) -> torch.Tensor:
    """The same memory as a storage of its own: who counts, compares or saves storages
    (torch.save, safetensors, Accelerate) then finds this parameter's bytes only."""
    return from_dlpack(view)

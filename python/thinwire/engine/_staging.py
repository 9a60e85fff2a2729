# SPDX-License-Identifier: Apache-2.0
"""An engine's parameters on a device, and their gradients on the way to the host."""

from __future__ import annotations

import collections

import torch

from .. import _core
from .._staging import StagedMemory
from ._hooks import Link
from ._memory import EngineMemory

_RING_BYTES = 64 << 20
"""Bytes of pinned memory for gradients that C++ does not keep, unless one gradient is
larger.
"""
_ALIGNMENT = 64


class StagedEngineMemory(StagedMemory, EngineMemory):
    """EngineMemory for parameters on a device, with gradients that are released once
    copied.
    """

    _added_up: list[int | None]
    """Addresses of the window's gradients on the device."""

    @torch.no_grad()
    def attach_parameters(self) -> None:
        """Converts parameters to the dtypes of the arrays. Called once."""
        for parameter, view in zip(self.parameters, self._values, strict=True):
            parameter.grad = None
            if parameter.dtype != view.dtype:
                parameter.data = parameter.detach().to(view.dtype)
        self.note_gradients()

    def require_gradients(self, at_start: bool) -> None:
        """Checks that the device holds only gradients that accumulate in this window,
        and none at its start.

        Raises FailedPrecondition naming a gradient that was removed, replaced or set.
        """
        if self.keeps_gradients:
            self.require_added_up(at_start)
        else:
            self._require_none()

    def require_added_up(self, at_start: bool) -> None:
        if at_start:
            self.attach_gradients()
            self.note_gradients()
        else:
            for k, before in enumerate(self._added_up):
                if _address(self.parameters[k].grad) != before:
                    self._refuse(k, self.parameters[k].grad is None)

    def note_gradients(self) -> None:
        self._added_up = [_address(p.grad) for p in self.parameters]

    def gradient_view(self, k: int) -> torch.Tensor:
        return self._gradients[k]


class StagedLink(Link):
    """Copies each gradient to the host, and passes it to C++ when it has arrived."""

    memory: StagedEngineMemory

    def __init__(
        self, core: _core.Engine, memory: StagedEngineMemory, config: _core.Config
    ) -> None:
        super().__init__(core, memory)
        self._is_boundary = True
        narrow = memory.params.dtype
        # The device can add up gradients in the parameters' dtype with the same result
        # as C++. 16-bit gradients that are added up in fp32 go to C++ after each
        # backward.
        self._adds_up = memory.keeps_gradients and (
            narrow == torch.float32 or config.accumulation_dtype != _core.DType.float32
        )
        # If the program ends windows, any backward may be the last.
        self._releases = not self._adds_up or config.managed_gradient_accumulation
        self._pending: collections.deque[
            tuple[int, torch.Tensor, torch.Event | None]
        ] = collections.deque()
        self._ring = None if memory.keeps_gradients else Ring(memory)

    def begin(self) -> None:
        self._is_boundary = self.core.is_boundary
        super().begin()

    def take(self, index: int, parameter: torch.Tensor) -> None:
        if not self._may_take(index):
            return
        gradient = parameter.grad
        if self._adds_up and not self._is_boundary:
            self.core.gradient_ready(index)
        elif gradient is not None and gradient.numel() > 0:
            if self._releases:
                parameter.grad = None
            self._copy(index, gradient.detach())
            self._hand_over()
        # Memory is counted per thread, and autograd calls hooks in a different thread.
        self.use = _core.memory_use()

    def finish(self) -> None:
        super().finish()
        if self._adds_up and self._is_boundary:
            for k, parameter in enumerate(self.memory.parameters):
                # The gradient is from earlier backwards of the window, because the last
                # had none.
                gradient = parameter.grad
                if self._releases:
                    parameter.grad = None
                if gradient is not None and gradient.numel() > 0:
                    self.memory.staging.to_host(
                        gradient.detach(), self.memory.gradient_view(k)
                    )
        if self._is_boundary or self._pending:
            self.memory.staging.wait()
        self._hand_over(all_have_arrived=True)
        self.memory.note_gradients()

    def cancel(self) -> None:
        super().cancel()
        self.memory.staging.wait()
        self._pending.clear()
        if self._ring is not None:
            self._ring.clear()
        self.memory.attach_gradients()
        self.memory.note_gradients()

    def _copy(self, index: int, gradient: torch.Tensor) -> None:
        view = self._place(index, gradient)
        event = self.memory.staging.to_host(gradient, view)
        self._pending.append((index, view, event))

    def _place(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        if self._ring is None:
            return self.memory.gradient_view(index)
        while (view := self._ring.place(gradient)) is None:
            event = self._pending[0][2]
            assert event is not None  # _hand_over() never waits without an event
            event.synchronize()
            self._hand_over()
        return view

    def _hand_over(self, all_have_arrived: bool = False) -> None:
        while self._pending:
            index, view, event = self._pending[0]
            if not (all_have_arrived or event is None or event.query()):
                return
            self._pending.popleft()
            if self._ring is None:
                self.core.gradient_ready(index)
            else:
                self.core.gradient_ready(index, view.view(-1))
                self._ring.free()


class Ring:
    """Pinned memory whose parts are freed in the order of their allocation."""

    def __init__(self, memory: StagedEngineMemory) -> None:
        values = [v.numel() * v.element_size() for v in memory._values]
        sizes = [_rounded(size) for size in values]
        size = max(*sizes, min(sum(sizes), _RING_BYTES)) if sizes else 0
        self.bytes = memory.staging.zeros(size, torch.uint8)
        self._note = _core.MemoryNote(
            _core.MemoryKind.gradients, memory.bytes_of(self.bytes)
        )
        self.clear()

    def clear(self) -> None:
        self._begin = self._end = 0
        self._ends: collections.deque[int] = collections.deque()

    def place(self, like: torch.Tensor) -> torch.Tensor | None:
        """Returns an array with the shape and dtype of `like`, or None if there is no
        room until the next free().
        """
        if not self._ends:
            self._begin = self._end = 0
        size, whole = _rounded(like.numel() * like.element_size()), self.bytes.numel()
        begin = self._end
        if begin % whole + size > whole:
            begin += whole - begin % whole
        if begin + size > self._begin + whole:
            return None
        self._end = begin + size
        self._ends.append(self._end)
        at = self.bytes.narrow(0, begin % whole, like.numel() * like.element_size())
        return at.view(like.dtype).view(like.shape)

    def free(self) -> None:
        self._begin = self._ends.popleft()


def _rounded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

# SPDX-License-Identifier: Apache-2.0
"""Parameters on a device, with their values and gradients in arrays on the host."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch

from ._log import logger
from ._memory import FlatMemory, Marks
from .errors import FailedPrecondition

_NOWHERE = (0, -1)
"""Version of a moved parameter, which no tensor has."""
_told: set[str] = set()


class Staging:
    """Copies between tensors of a device and arrays on the host, on its own stream.

    If the device has no streams or no pinned memory, the host waits for every copy, and
    a warning is logged once.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.why_synchronous = ""
        """Reason why copies are synchronous; empty if copies are asynchronous."""
        self._is_quiet = True
        self._stream: torch.Stream | None = None
        try:
            self._stream = torch.Stream(device)
            self.zeros(1, torch.float32)
        except (RuntimeError, NotImplementedError) as error:
            self._do_without(f"it has no streams ({first_line(error)})")

    @property
    def has_streams(self) -> bool:
        return self._stream is not None

    def zeros(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns an array that the device can copy to and from while the host computes."""
        if self._stream is not None:
            try:
                made = torch.zeros(size, dtype=dtype, pin_memory=True)
                if size == 0 or (made.device.type == "cpu" and made.is_pinned()):
                    return made
                why = "torch pins no memory for it"
            except (RuntimeError, NotImplementedError) as error:
                rounded = pinned_bytes(size * dtype.itemsize)
                why = f"{rounded} bytes of pinned memory were refused ({first_line(error)})"
            self._do_without(why)
        return torch.zeros(size, dtype=dtype, device="cpu")

    def to_host(self, tensor: torch.Tensor, view: torch.Tensor) -> torch.Event | None:
        """Copies `tensor` to `view`, a part of an array from zeros(). Returns the event
        after which the copy is complete, or None if it already is. The tensor may be
        released at once.
        """
        stream = self._stream
        if stream is None:
            view.copy_(tensor)
            return None
        # Copies to the host are asynchronous only between contiguous tensors of one
        # dtype.
        tensor = tensor.to(view.dtype).contiguous()
        # The stream is looked up in every call, because a hook runs on the stream of
        # its gradient.
        stream.wait_event(self._current().record_event())
        with stream:
            view.copy_(tensor, non_blocking=True)
        tensor.record_stream(stream)
        self._is_quiet = False
        return stream.record_event()

    def to_device(
        self, views: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
    ) -> None:
        """Queues copies. Operations that are queued later see the new values, and
        earlier operations see the old values.
        """
        stream = self._stream  # another thread may set it to None
        if stream is None:
            for view, tensor in zip(views, tensors, strict=True):
                tensor.copy_(view)
            return
        current = self._current()
        stream.wait_event(current.record_event())
        with stream:
            for view, tensor in zip(views, tensors, strict=True):
                tensor.copy_(view, non_blocking=True)
        current.wait_event(stream.record_event())
        self._is_quiet = False

    def wait(self) -> None:
        """Blocks until all copies are done. The host may then read and write the arrays."""
        if self._stream is not None and not self._is_quiet:
            self._stream.synchronize()
        self._is_quiet = True

    def _current(self) -> torch.Stream:
        return torch.accelerator.current_stream(self.device)

    def _do_without(self, why: str) -> None:
        self.wait()  # for copies in flight
        self._stream, self.why_synchronous = None, why
        if self.device.type not in _told:
            _told.add(self.device.type)
            logger.warning(
                "copies from and to %s are synchronous, and so slower: %s",
                self.device,
                why,
            )


class StagedMemory(FlatMemory):
    """FlatMemory whose parameters stay on their device.

    Writes of the program are detected by the parameter's version, which all in-place
    operations increment, except operations on `parameter.data`.
    """

    is_staged = True
    was_edited: bool
    """Whether the program has written into parameters since publish()."""
    _sent: list[tuple[int, int]]
    """Address and version of each parameter at the time it was sent."""
    _missing: list[int]
    """Number of each parameter's elements that are not final in this step; -1 if the
    parameter was sent.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], *rest: Any) -> None:
        self.staging = Staging(parameters[0].device)
        super().__init__(parameters, *rest)
        self.was_edited = False
        self._missing = [view.numel() for view in self._values]
        self._sent = [(p.data_ptr(), p._version) for p in self.parameters]

    def zeros(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return self.staging.zeros(size, dtype)

    def bytes_of(self, *arrays: torch.Tensor) -> int:
        return sum(
            pinned_bytes(array.nbytes) if array.is_pinned() else array.nbytes
            for array in arrays
        )

    def marks(self) -> Marks | None:
        return StagedMarks(self)

    def read_parameters(self) -> bool:
        """Copies to the arrays the parameters that the program has written since
        publish(). Returns whether there are any. Local.

        Raises FailedPrecondition like make_writable().
        """
        written = [
            k
            for k, parameter in enumerate(self.parameters)
            if (parameter.data_ptr(), parameter._version) != self._sent[k]
        ]
        for k in written:
            self._require_same_kind(k)
        changed = [k for k in written if self._read(k)]
        self.was_edited |= bool(changed)
        return bool(changed)

    def read_written(self) -> None:
        # The next step refuses a parameter that was moved.
        with suppress(FailedPrecondition):
            self.read_parameters()

    def make_writable(self) -> bool:
        """Does the same as read_parameters(), and waits until the arrays may be written."""
        changed = self.read_parameters()
        self.staging.wait()
        return changed

    def attach_parameters(self) -> None:
        """Does nothing, because parameters stay on their device."""

    def final_range(self) -> Callable[[int, int], None]:
        return self._send_final

    def publish(self) -> None:
        """Sends the parameters that the step has not sent, except those that
        read_parameters() will reject.
        """
        self._send(k for k, missing in enumerate(self._missing) if missing >= 0)
        self._missing = [view.numel() for view in self._values]
        self.was_edited = False

    def _send_final(self, begin: int, end: int) -> None:
        """Sends parameters whose last missing elements are in [begin, end)."""
        complete = []
        for k in range(bisect_right(self._offsets, begin) - 1, len(self.parameters)):
            if self._offsets[k] >= end:
                break
            size = self._values[k].numel()
            first, last = self._offsets[k], self._offsets[k] + size
            self._missing[k] -= max(0, min(end, last) - max(begin, first))
            if self._missing[k] == 0 and size > 0:
                self._missing[k] = -1
                complete.append(k)
        self._send(complete)

    @torch.no_grad()
    def _send(self, numbers: Iterable[int]) -> None:
        here = []
        for k in numbers:
            was, self._sent[k] = self._sent[k], _NOWHERE
            if self.parameters[k].data_ptr() == was[0] or self._is_same_kind(k):
                here.append(k)
        if not here:
            return
        self.staging.to_device(
            [self._values[k] for k in here], [self.parameters[k] for k in here]
        )
        for k in here:
            self._sent[k] = self.parameters[k].data_ptr(), self.parameters[k]._version

    def attach_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _fill(
        self,
        found: Sequence[torch.Tensor | None],
        views: Sequence[torch.Tensor],
        written: Sequence[torch.Tensor],
    ) -> None:
        for gradient, view in zip(found, views, strict=True):
            if gradient is not None:
                self.staging.to_host(gradient.detach(), view)
        self.staging.wait()
        for gradient, view in zip(found, views, strict=True):
            if gradient is None:
                view.zero_()

    @torch.no_grad()
    def _read(self, k: int) -> bool:
        """Copies parameter k to its view, and returns whether the bits have changed."""
        parameter, view = self.parameters[k], self._values[k]
        now = parameter.detach().to("cpu", view.dtype)
        self._sent[k] = parameter.data_ptr(), parameter._version
        bits = torch.int32 if view.dtype == torch.float32 else torch.int16
        if torch.equal(now.contiguous().view(bits), view.view(bits)):
            return False
        view.copy_(now)
        return True

    def _devices(self, k: int) -> tuple[str, str]:
        return str(self.parameters[k].device), str(self.staging.device)


class StagedMarks(Marks):
    """Reports the writes that a StagedMemory has detected."""

    def __init__(self, memory: StagedMemory) -> None:
        self._memory = memory

    def remember(self) -> None:
        self._memory.was_edited = False

    def have_changed(self) -> bool:
        return self._memory.was_edited


def pinned_bytes(size: int) -> int:
    """Returns the power of two that torch's allocator uses for `size` bytes."""
    return 1 << (size - 1).bit_length() if size > 0 else 0


def copies_gbps() -> float:
    """Returns the rate of copies from pinned memory to the device, or 0."""
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        return 0.0
    there = torch.zeros(16 << 20, device=device)
    try:
        here = torch.zeros(there.numel(), pin_memory=True)
    except RuntimeError:
        return 0.0
    seconds = best_time(lambda: there.copy_(here, non_blocking=True))
    return here.nbytes / 1e9 / seconds


def best_time(action: Callable[[], object]) -> float:
    """Returns the seconds of the fastest of five calls, on the device and the host."""
    seconds = []
    for _ in range(5):
        torch.accelerator.synchronize()
        begin = time.perf_counter()
        action()
        torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]

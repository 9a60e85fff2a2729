# SPDX-License-Identifier: Apache-2.0
"""Transfer of gradients from backward to the host's leader."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from ... import _core
from .._staging import StagedLink
from .core import LedCore
from .memory import LeaderMemory, buckets_of

Made = tuple[torch.Tensor, torch.Event | None]
"""A tensor, and the event that marks it complete."""


class LedLink(StagedLink):
    """Sums gradients in the device's process group, one bucket at a time, while
    backward computes further gradients. The leader then copies the sums to the host.

    Buckets and their order are the same on all ranks, regardless of the order of
    gradients. A missing gradient counts as zero. Until a window's last backward,
    gradients add up on the device, in fp32 if the configuration accumulates in fp32.
    """

    def __init__(
        self, core: LedCore, memory: LeaderMemory, config: _core.Config
    ) -> None:
        super().__init__(core, memory, config)  # type: ignore[arg-type]
        self._led = core
        self._hosts = core.hosts
        self._in_fp32 = config.accumulation_dtype == _core.DType.float32
        self._buckets = buckets_of(memory._values)
        self._bucket_of = {k: b for b, ks in enumerate(self._buckets) for k in ks}
        self._sums: torch.Stream | None = None
        if memory.staging.has_streams:
            self._sums = torch.Stream(memory.staging.device)
        self._added: dict[int, Made] = {}
        """Gradient sums of the window's earlier backwards, in fp32."""
        self._forget()

    def _forget(self) -> None:
        self._found: dict[int, Made] = {}
        self._missing = [len(bucket) for bucket in self._buckets]
        self._next = 0

    def begin(self) -> None:
        super().begin()
        self._forget()

    def take(self, index: int, parameter: torch.Tensor) -> None:
        if not self._may_take(index):
            return
        gradient = parameter.grad
        if not self._is_boundary:
            self._add_up(index, parameter)
        elif gradient is not None:
            parameter.grad = None
            self._collect(index, gradient.detach())
            while self._next < len(self._buckets) and not self._missing[self._next]:
                self._send()
            self._hand_over()
        self.use = _core.memory_use()

    def finish(self) -> None:
        self.in_backward = False
        if self._is_boundary:
            self._finish_window()
        self.memory.note_gradients()

    def cancel(self) -> None:
        self._found.clear()
        self._added.clear()
        super().cancel()

    @torch.no_grad()
    def _finish_window(self) -> None:
        for k, parameter in enumerate(self.memory.parameters):
            # The gradient is from earlier backwards of the window; the last one had
            # none.
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None and k not in self._taken:
                self._collect(k, gradient.detach())
        while self._next < len(self._buckets):
            self._send()
        if self._hosts.is_leader:
            with self._hosts.waiting("sums"):
                self.memory.staging.wait()
            self._hand_over(all_have_arrived=True)

    @torch.no_grad()
    def _add_up(self, index: int, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if not self._in_fp32 or gradient is None or gradient.dtype == torch.float32:
            return
        parameter.grad = None
        total = gradient.detach().float()
        if index in self._added:
            before, event = self._added[index]
            if event is not None:
                self._stream_now().wait_event(event)
                before.record_stream(self._stream_now())
            total += before
        self._added[index] = total, self._event()

    def _collect(self, index: int, gradient: torch.Tensor) -> None:
        self._found[index] = gradient, self._event()
        self._missing[self._bucket_of[index]] -= 1

    def _event(self) -> torch.Event | None:
        if self._sums is None:
            return None
        return self._stream_now().record_event()

    def _stream_now(self) -> torch.Stream:
        return torch.accelerator.current_stream(self.memory.staging.device)

    @torch.no_grad()
    def _send(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        self._led.has_sent = True
        here: AbstractContextManager[object] = self._sums or nullcontext()
        with here:
            flat = torch.cat([self._part(k) for k in bucket])
            if flat.numel() == 0:
                return
            self._hosts.reduce(flat)
            if not self._hosts.is_leader:
                return
            views = [self.memory._values[k] for k in bucket]
            parts = flat.split([view.numel() for view in views])
            for k, view, part in zip(bucket, views, parts, strict=True):
                if view.numel() > 0:
                    self._copy(k, part.view(view.shape).to(view.dtype))

    def _part(self, k: int) -> torch.Tensor:
        """Returns this rank's gradient of the window, in the dtype of the sums."""
        value = self.memory._values[k]
        dtype = torch.float32 if self._in_fp32 else value.dtype
        parts = []
        for made in (self._added.pop(k, None), self._found.pop(k, None)):
            if made is None:
                continue
            tensor, event = made
            if self._sums is not None and event is not None:
                self._sums.wait_event(event)
                tensor.record_stream(self._sums)
            parts.append(tensor.reshape(-1).to(dtype))
        if not parts:
            where = self.memory.staging.device
            return torch.zeros(value.numel(), dtype=dtype, device=where)
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

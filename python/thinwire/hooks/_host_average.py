# SPDX-License-Identifier: Apache-2.0
"""Averages in host memory, by the native library."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from .. import _core
from .._staging import Staging
from ._average import Averaged
from ._parameters import norm_of


@dataclass
class _Taken:
    values: torch.Tensor
    on_host: torch.Tensor  # the values, or a copy
    staging: Staging | None = None
    event: torch.Event | None = None  # of the copy

    def averaged(self, is_finite: bool) -> Averaged:
        norm = norm_of(self.on_host)
        if self.staging is not None:
            self.staging.to_device([self.on_host], [self.values])
        return Averaged(norm, is_finite)


class HostAverage:
    """Averages with the native library. Copies values of other devices to the host and
    back."""

    path = "host"

    def __init__(self, native: _core.LowBitMean | _core.LowRankMean) -> None:
        self.native = native
        self._stagings: dict[torch.device, Staging] = {}
        self._on_host: dict[Any, torch.Tensor] = {}
        self._in_flight: deque[_Taken] = deque()

    def take(self, number: int, values: torch.Tensor) -> _Taken:
        if values.device.type == "cpu":
            return _Taken(values, values)
        if values.device not in self._stagings:
            self._stagings[values.device] = Staging(values.device)
        staging = self._stagings[values.device]
        key = (number, values.numel(), values.dtype, values.device)
        if key not in self._on_host:
            self._on_host[key] = staging.zeros(values.numel(), values.dtype)
        there = self._on_host[key]
        return _Taken(values, there, staging, staging.to_host(values, there))

    def begin(
        self, taken: _Taken, units: Sequence[int], scale: float
    ) -> list[Averaged]:
        if taken.event is not None:
            taken.event.synchronize()
        self._in_flight.append(taken)
        return self._completed(self.native.begin(taken.on_host, units, scale))

    def finish(self) -> list[Averaged]:
        return self._completed(self.native.finish())

    def _completed(self, are_finite: list[bool]) -> list[Averaged]:
        return [self._in_flight.popleft().averaged(finite) for finite in are_finite]

    def running(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def give_up(self) -> None:
        """Does nothing, because the communicator gives up."""

    @property
    def hosts(self) -> tuple[int, int]:
        return self.native.hosts

    @property
    def bytes_per_pass(self) -> int:
        return self.native.bytes_per_pass

    @property
    def bytes_sent(self) -> int:
        return self.native.bytes_sent

    @property
    def wait_seconds(self) -> float:
        return self.native.wait_seconds

    def worker_norm(self) -> float:
        return norm_of(self.worker_error())

    def worker_error(self) -> torch.Tensor:
        return from_dlpack(self.native.worker_error())

    def server_error(self) -> torch.Tensor:
        return from_dlpack(self.native.server_error())

    def load_errors(self, worker: torch.Tensor, server: torch.Tensor) -> None:
        assert isinstance(self.native, _core.LowBitMean)
        self.native.load_errors(worker, server)

    def close(self) -> None:
        self.native.close()

# SPDX-License-Identifier: Apache-2.0
"""Interface of the averages that hooks use."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass
class Averaged:
    """The average of a bucket, which has replaced the bucket's values."""

    norm: float | torch.Tensor
    is_finite: bool | torch.Tensor
    """Numbers, or tensors on a device, for which a reader must wait."""


class Average(Protocol):
    """Averages buckets in low bits, with residuals per parameter ("unit").

    Backward's thread calls take(), and the thread of the exchanges calls all other
    methods. Arrays of residuals are flat, on the CPU, and contain all units.
    """

    path: str
    """Location of the averages: "host" or "device"."""

    def take(self, number: int, values: torch.Tensor) -> Any:
        """Takes the present values of bucket `number`, flat and dense. Queued. Returns
        the argument of begin().
        """

    def begin(self, taken: Any, units: Sequence[int], scale: float) -> list[Averaged]:
        """Begins to average a bucket, and completes the bucket begun two calls before.
        Collective. Returns the completed averages, oldest first.
        """

    def finish(self) -> list[Averaged]:
        """Completes all buckets. Collective."""

    def running(self) -> AbstractContextManager[Any]:
        """Makes later operations wait for completed buckets."""

    def give_up(self) -> None:
        """Ends exchanges in flight on all ranks. Local."""

    @property
    def hosts(self) -> tuple[int, int]:
        """Returns this rank's host and the number of hosts or, if flat, its rank and
        the number of ranks."""

    @property
    def bytes_per_pass(self) -> int: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def wait_seconds(self) -> float: ...
    def worker_norm(self) -> float: ...
    def worker_error(self) -> torch.Tensor: ...
    def server_error(self) -> torch.Tensor: ...
    def load_errors(self, worker: torch.Tensor, server: torch.Tensor) -> None: ...
    def close(self) -> None: ...

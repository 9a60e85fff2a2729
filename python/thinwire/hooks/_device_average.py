# SPDX-License-Identifier: Apache-2.0
"""Averages on the device of the gradients, in operations of torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..comm.device_groups import DeviceGroups
from ._average import Averaged
from ._codec import BLOCK, opened
from ._exchange import Exchange
from ._rows import Cuts, Layout, Places, Plan

_Flight = Generator[None, None, Averaged]
_Taken = tuple[torch.Tensor, torch.Event | None]
"""Values, and the event after which they are final."""


class DeviceAverage:
    """Averages over the process groups of a device, with the arithmetic of
    _core.LowBitMean and, between hosts, the same bits. No value is copied to the host.

    A bucket passes through three stages: up to the servers, down from the servers, and
    the results. A bucket enters a stage after the next bucket has entered the previous
    stage. The codec of one bucket therefore overlaps the exchange of another.
    """

    path = "device"

    def __init__(
        self,
        groups: DeviceGroups,
        sizes: Sequence[int],
        bits: int,
        residual_dtype: torch.dtype,
    ) -> None:
        """Creates the residuals of units of these sizes, with the value 0. Local."""
        device = groups.device
        self._exchange = Exchange(groups, bits)
        self._groups, self._device = groups, device
        self._cuts, self._places = Cuts(sizes), Places(groups)
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._flights: deque[_Flight] = deque()
        self._stream = None if device.type == "cpu" else torch.Stream(device)
        with self.running():
            self._worker, self._server = (
                torch.zeros(rows, BLOCK, dtype=residual_dtype, device=device)
                for rows in self._places.rows(self._cuts)
            )

    def running(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else self._stream

    def take(self, number: int, values: torch.Tensor) -> _Taken:
        if self._stream is None:
            return values, None
        values.record_stream(self._stream)
        current = torch.accelerator.current_stream(values.device)
        return values, current.record_event()

    @torch.no_grad()
    def begin(
        self, taken: _Taken, units: Sequence[int], scale: float
    ) -> list[Averaged]:
        values, event = taken
        if self._stream is not None and event is not None:
            self._stream.wait_event(event)
        older = list(self._flights)
        flight = self._flight(values, self._plan(units), scale)
        next(flight)
        self._flights.append(flight)
        return self._advance(reversed(older))

    @torch.no_grad()
    def finish(self) -> list[Averaged]:
        completed = []
        while self._flights:
            completed += self._advance(list(self._flights))
        return completed

    def _advance(self, flights: Any) -> list[Averaged]:
        """Advances each flight by one stage. Returns the completed ones."""
        completed = []
        for flight in flights:
            try:
                next(flight)
            except StopIteration as end:
                completed.append(end.value)
                self._flights.remove(flight)
        return completed

    def _flight(self, values: torch.Tensor, plan: Plan, scale: float) -> _Flight:
        exchange, chunks = self._exchange, plan.chunks
        ups, downs = [], []
        rows = plan.layout.rows_of(values)
        for chunk, part in zip(chunks, plan.split(rows), strict=True):
            c = exchange.mean_of_host(part, chunk.order)
            if scale != 1:
                c.mul_(1 / scale)
            c.add_(chunk.worker.of(self._worker))
            ups.append(exchange.send_up(c, chunk.order))
        yield
        for chunk, (up, _) in zip(chunks, ups, strict=True):
            c = exchange.mean_between(up).add_(chunk.server.of(self._server))
            downs.append(exchange.send_down(c))
        yield
        of_all = [exchange.whole(down) for down, _ in downs]
        opens = [
            opened(records.index_select(0, chunk.back), BLOCK, exchange.bits)
            for chunk, records in zip(chunks, of_all, strict=True)
        ]
        is_finite = torch.stack([step.isfinite().all() for _, step in opens]).all()
        most = torch.finfo(values.dtype).max
        results = torch.empty(
            plan.layout.count, BLOCK, dtype=torch.float32, device=values.device
        )
        for (q, step), to in zip(opens, plan.split(results), strict=True):
            torch.mul(q, step.masked_fill_(~is_finite, torch.nan), out=to)
            if scale != 1:
                to.mul_(scale)
            to.clamp_(-most, most)
        plan.layout.write_back(results, values)
        del rows, results
        for chunk, (_, error), (_, lack) in zip(chunks, ups, downs, strict=True):
            chunk.worker.keep(self._worker, error, is_finite)
            chunk.server.keep(self._server, lack, is_finite)
        norm = torch.linalg.vector_norm(values, dtype=torch.float32)
        return Averaged(norm, is_finite)

    def _plan(self, units: Sequence[int]) -> Plan:
        key = tuple(units)
        if key not in self._plans:
            # Plans for earlier buckets that contain these units will not be used again.
            wanted = set(units)
            for other in [k for k in self._plans if wanted.intersection(k)]:
                del self._plans[other]
            self._plans[key] = Plan(self._cuts, units, self._places, self._device)
        return self._plans[key]

    def give_up(self) -> None:
        self._groups.end()

    @property
    def hosts(self) -> tuple[int, int]:
        return self._groups.host, self._groups.hosts

    @property
    def bytes_per_pass(self) -> int:
        """Returns the bytes without padding. A bucket is padded if its number of blocks
        is not a multiple of the ranks.
        """
        _, rows = self._places.rows(self._cuts)
        return 2 * self._exchange.bytes_to_others(rows - 1)

    @property
    def bytes_sent(self) -> int:
        return self._exchange.bytes_sent

    @property
    def wait_seconds(self) -> float:
        return self._groups.wait_seconds

    def worker_norm(self) -> float:
        with self.running():
            return float(torch.linalg.vector_norm(self._worker, dtype=torch.float32))

    def worker_error(self) -> torch.Tensor:
        numbers, rows = self._places.encoded(self._cuts)
        return self._flat(self._worker, numbers, rows)

    def server_error(self) -> torch.Tensor:
        numbers, rows = self._places.served(self._cuts)
        return self._flat(self._server, numbers, rows)

    def load_errors(self, worker: torch.Tensor, server: torch.Tensor) -> None:
        layout = Layout(self._cuts, range(len(self._cuts.sizes)))
        for kept, flat, (numbers, rows) in (
            (self._worker, worker, self._places.encoded(self._cuts)),
            (self._server, server, self._places.served(self._cuts)),
        ):
            given = torch.zeros(kept.shape, dtype=kept.dtype)
            given[rows] = layout.rows_of(flat)[numbers].to(kept.dtype)
            with self.running():
                kept.copy_(given)

    def _flat(
        self, kept: torch.Tensor, numbers: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """Returns the residuals of all units, with 0 for residuals on other ranks."""
        with self.running():
            here = kept.cpu()
        whole = torch.zeros(self._cuts.total, BLOCK, dtype=kept.dtype)
        whole[numbers] = here[rows]
        flat = torch.empty(sum(self._cuts.sizes), dtype=kept.dtype)
        Layout(self._cuts, range(len(self._cuts.sizes))).write_back(whole, flat)
        return flat

    def close(self) -> None:
        # Remaining flights belong to a backward that has failed, perhaps at another
        # point on other ranks.
        self._groups.close(in_flight=bool(self._flights))

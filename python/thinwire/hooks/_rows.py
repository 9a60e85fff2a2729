# SPDX-License-Identifier: Apache-2.0
"""Rows of a matrix that the blocks of parameters occupy, and the rank that serves
each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from ..comm.device_groups import DeviceGroups
from ._codec import BLOCK

_OF_A_CPU, _OF_A_DEVICE = 512, 1 << 14
"""Rows of a chunk. A CPU keeps the smaller chunk in its cache, and a device launches
fewer operations for larger chunks.
"""
Tensors = list[torch.Tensor] | tuple[torch.Tensor, ...]


class Cuts:
    """The blocks of all units, also called cuts. On W ranks, place k mod W serves cut
    k, as in the exchange on the host. Results and residuals therefore do not depend on
    buckets.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.counts = [-(-size // BLOCK) for size in sizes]
        self.first = [0, *accumulate(self.counts)]
        self.total = self.first[-1]

    def of(self, units: Sequence[int]) -> torch.Tensor:
        """Returns the numbers of the cuts of units, in their order."""
        return torch.cat(
            [torch.arange(self.first[u], self.first[u + 1]) for u in units]
        )


def copy_each(to: Tensors, given: Tensors) -> None:
    """Copies each tensor to a tensor of the same size, with few launches on a device."""
    if to:
        torch._foreach_copy_(to, given)


class Layout:
    """The elements of some units in a flat array, and their rows in the order of cuts."""

    def __init__(self, cuts: Cuts, units: Sequence[int]) -> None:
        self.sizes = [cuts.sizes[unit] for unit in units]
        ordered = sorted(units)
        starts = accumulate((cuts.counts[unit] for unit in ordered), initial=0)
        first = dict(zip(ordered, starts, strict=False))
        self.begins = [BLOCK * first[unit] for unit in units]
        self.count = sum(cuts.counts[unit] for unit in units)
        self.is_padded = sum(self.sizes) < self.count * BLOCK

    def rows_of(self, flat: torch.Tensor) -> torch.Tensor:
        """Returns the values in fp32. The last row of a unit is padded with zeros."""
        make = flat.new_zeros if self.is_padded else flat.new_empty
        rows = make(self.count, BLOCK, dtype=torch.float32)
        copy_each(self._parts(rows), flat.split(self.sizes))
        return rows

    def write_back(self, rows: torch.Tensor, flat: torch.Tensor) -> None:
        """Writes rows to `flat`, rounded to its dtype."""
        copy_each(flat.split(self.sizes), self._parts(rows))

    def _parts(self, rows: torch.Tensor) -> list[torch.Tensor]:
        padded = rows.view(-1)
        pairs = zip(self.begins, self.sizes, strict=True)
        return [padded[begin : begin + size] for begin, size in pairs]


class Rows:
    """Rows of a matrix, which are a view if they are adjacent."""

    def __init__(self, numbers: torch.Tensor, where: torch.device) -> None:
        first, count = int(numbers[0]) if len(numbers) else 0, len(numbers)
        follow = torch.equal(numbers, torch.arange(first, first + count))
        self._range = slice(first, first + count) if follow else None
        self._index = None if follow else numbers.to(where)

    def of(self, matrix: torch.Tensor) -> torch.Tensor:
        if self._index is None:
            return matrix[self._range]
        return matrix.index_select(0, self._index)

    def keep(
        self, matrix: torch.Tensor, given: torch.Tensor, condition: torch.Tensor
    ) -> None:
        """If `condition` holds, writes `given` to the rows, rounded to the matrix's
        dtype.
        """
        before = self.of(matrix)
        after = torch.where(condition, given.to(before.dtype), before)
        if self._index is None:
            before.copy_(after)
        else:
            matrix.index_copy_(0, self._index, after)


class Places:
    """The cuts that this rank encodes and serves, and their rows in its residuals. An
    additional last row belongs to no cut and is 0.
    """

    def __init__(self, groups: DeviceGroups) -> None:
        self.hosts, self.number = groups.hosts, groups.number
        self.count = groups.hosts * groups.per_host
        self.first = groups.local * groups.hosts
        """The first of the places, one for each host, whose blocks this rank encodes."""

    def rows(self, cuts: Cuts) -> tuple[int, int]:
        """Returns the numbers of rows of the residuals of a worker and of a server."""
        served = -(-cuts.total // self.count)
        return served * self.hosts + 1, served + 1

    def worker_row(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers // self.count * self.hosts + numbers % self.count - self.first

    def server_row(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers // self.count

    def encoded(self, cuts: Cuts) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the numbers of the cuts that this rank encodes, and their rows."""
        numbers = torch.arange(cuts.total)
        place = numbers % self.count
        own = (place >= self.first) & (place < self.first + self.hosts)
        return numbers[own], self.worker_row(numbers[own])

    def served(self, cuts: Cuts) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the numbers of the cuts that this rank serves, and their rows."""
        numbers = torch.arange(self.first + self.number, cuts.total, self.count)
        return numbers, self.server_row(numbers)


class Chunk:
    """Some rows in the order in which they are sent: by place, with the same number of
    rows for each place. The last rows of a place may be copies of another row, which
    are not read.
    """

    def __init__(
        self, cuts: Cuts, numbers: torch.Tensor, places: Places, where: torch.device
    ) -> None:
        """`numbers` are the numbers of the rows' cuts, in ascending order."""
        place = numbers % places.count
        by_place = torch.argsort(place, stable=True)
        counts = torch.bincount(place, minlength=places.count)
        each = int(counts.max())
        first = counts.cumsum(0) - counts
        slots = place[by_place] * each
        slots += torch.arange(len(numbers)) - first[place[by_place]]
        order = torch.full((places.count * each,), -1)
        order[slots] = by_place
        back = torch.empty_like(by_place)
        back[by_place] = slots
        own = order.view(places.count, -1)[places.first :][: places.hosts]
        worker_rows, server_rows = places.rows(cuts)
        worker = places.worker_row(numbers[own]).where(own >= 0, worker_rows - 1)
        server = places.server_row(numbers[own]).where(own >= 0, server_rows - 1)
        self.size = len(numbers)
        self.order = order.clamp(min=0).to(where)
        """Row in each slot."""
        self.back = back.to(where)
        """Slot of each row."""
        if places.count == places.hosts:  # rows are encoded before ordering
            worker = places.worker_row(numbers)
        self.worker = Rows(worker.flatten(), where)
        self.server = Rows(server[places.number], where)


class Plan:
    """The rows of some units in chunks, of which one is encoded while another is in
    flight.
    """

    def __init__(
        self, cuts: Cuts, units: Sequence[int], places: Places, where: torch.device
    ) -> None:
        self.layout = Layout(cuts, units)
        size = _OF_A_CPU if where.type == "cpu" else _OF_A_DEVICE
        self.chunks = [
            Chunk(cuts, numbers, places, where)
            for numbers in cuts.of(sorted(units)).split(size)
        ]

    def split(self, rows: torch.Tensor) -> Tensors:
        parts: Tensors = rows.split([chunk.size for chunk in self.chunks])
        return parts

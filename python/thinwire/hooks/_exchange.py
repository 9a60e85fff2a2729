# SPDX-License-Identifier: Apache-2.0
"""Exchanges of blocks in the process groups of a device.

Rows are blocks. Ranks have places: local rank l of host h, among H hosts, has place l H
+ h. The rank at a block's place serves it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ..comm.device_groups import DeviceGroups
from ._codec import BLOCK, average, encode, record_bytes

# torch 2.13 used other names.
_all_gather: Any = getattr(dist, "all_gather_single", None)
_all_gather = _all_gather or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None)
_reduce_scatter = _reduce_scatter or dist.reduce_scatter_tensor


class Sent:
    """Records in flight. received() makes later operations wait for these records."""

    def __init__(self, groups: DeviceGroups, to: torch.Tensor, work: Any) -> None:
        self._groups, self._to, self._work = groups, to, work

    def received(self) -> torch.Tensor:
        """Raises CommFailure if the exchange fails."""
        with self._groups.waiting():
            self._work.wait()
        return self._to


class Exchange:
    """Sends records of blocks of `bits` bits between hosts, and exact values inside."""

    def __init__(self, groups: DeviceGroups, bits: int) -> None:
        self.groups, self.bits = groups, bits
        self.bytes_sent = 0
        """Bytes of records that this rank has sent to other hosts."""

    def mean_of_host(self, rows: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Returns this rank's part of the mean of fp32 rows; `order` contains the row
        of each slot, by place. If hosts are flat, returns all rows unchanged.
        Collective in the host.
        """
        groups = self.groups
        if groups.inside is None:
            return rows
        ordered = rows.index_select(0, order)
        mean = rows.new_empty(len(order) // groups.per_host, rows.shape[1])
        with groups.waiting():
            _reduce_scatter(mean, ordered, group=groups.inside)
        return mean.mul_(1 / groups.per_host)

    def send_up(
        self, c: torch.Tensor, order: torch.Tensor | None = None
    ) -> tuple[Sent, torch.Tensor]:
        """Sends the result of mean_of_host() plus residuals to the ranks with this
        rank's number on all hosts, the same number of rows to each. Also returns the
        rounding errors, which overwrite `c`. Collective between hosts, queued.

        If hosts are flat, `order` contains the row of each slot. None means that rows
        are already in slot order.
        """
        records, error = encode(c, self.bits)
        if self.groups.inside is None and order is not None:
            records = records.index_select(0, order)
        received = torch.empty_like(records)
        to_one = records.nbytes // self.groups.hosts
        return self._sent(dist.all_to_all_single, received, records, to_one), error

    def mean_between(self, sent: Sent) -> torch.Tensor:
        """Returns the mean of received blocks over hosts, added in the order of ranks."""
        records = sent.received()
        hosts = self.groups.hosts
        return average(records.view(hosts, -1, records.shape[1]), BLOCK, self.bits)

    def send_down(self, c: torch.Tensor) -> tuple[Sent, torch.Tensor]:
        """Sends all blocks to each rank with this rank's number. Also returns the
        rounding errors, which overwrite `c`. Collective between hosts, queued.
        """
        records, error = encode(c, self.bits)
        whole = records.new_empty(len(records) * self.groups.hosts, records.shape[1])
        return self._sent(_all_gather, whole, records, records.nbytes), error

    def whole(self, sent: Sent) -> torch.Tensor:
        """Returns the records of all slots, by place. Collective in the host."""
        records = sent.received()
        groups = self.groups
        if groups.inside is None:
            return records
        of_all = records.new_empty(len(records) * groups.per_host, records.shape[1])
        with groups.waiting():
            _all_gather(of_all, records, group=groups.inside)
        return of_all

    def bytes_to_others(self, rows: int) -> int:
        """Returns the bytes that a rank sends to other hosts for its rows of one place."""
        return (self.groups.hosts - 1) * rows * record_bytes(BLOCK, self.bits)

    def _sent(
        self, call: Any, to: torch.Tensor, records: torch.Tensor, to_one: int
    ) -> Sent:
        self.bytes_sent += (self.groups.hosts - 1) * to_one
        with self.groups.waiting():
            work = call(to, records, group=self.groups.between, async_op=True)
        return Sent(self.groups, to, work)

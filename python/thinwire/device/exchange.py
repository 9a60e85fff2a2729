# SPDX-License-Identifier: Apache-2.0
"""Collectives of the device path, on the caller's thread.

Over a torch process group of the device's backend they are queued (async_op) and waited for
where their result is needed. Over a communicator of the native module, which local ranks on
threads have, they are done at once; its tensors must lie on the CPU.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ..errors import CommFailure, InvalidArgument, Unavailable


class Group(Protocol):
    """Who takes part: a torch process group that only the optimizer uses."""

    rank: int
    size: int
    process_group: Any


class Pending:
    """A collective under way; wait() gives its output."""

    def __init__(self, exchange: Exchange, work: Any, output: torch.Tensor) -> None:
        self._exchange = exchange
        self._work = work
        self._output = output

    def wait(self) -> torch.Tensor:
        if self._work is not None:
            self._exchange.run(self._work.wait)
            self._work = None
        return self._output


class Exchange(ABC):
    """What the optimizers send; counts bytes to other ranks, collectives and time spent
    waiting. Every call is collective and raises CommFailure if a peer is lost."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.bytes_sent = 0
        self.collectives = 0
        self.seconds = 0.0

    @abstractmethod
    def _all_to_all(self, values: torch.Tensor, output: torch.Tensor) -> Any: ...

    @abstractmethod
    def _all_gather(self, values: torch.Tensor, output: torch.Tensor) -> Any: ...

    @abstractmethod
    def _all_reduce(self, values: torch.Tensor) -> Any: ...

    def run(self, call: Callable[..., Any], *arguments: torch.Tensor) -> Any:
        begin = time.perf_counter()
        try:
            return call(*arguments)
        except (RuntimeError, ValueError) as error:
            if isinstance(error, CommFailure):
                raise
            text = str(error).strip().splitlines()
            raise CommFailure(
                f"device exchange: {text[-1] if text else error!r}"
            ) from error
        finally:
            self.seconds += time.perf_counter() - begin

    def all_to_all(self, values: torch.Tensor) -> Pending:
        """Row block r of `values` goes to rank r; out comes [ranks, rows / ranks, ...] of what
        they sent here."""
        values = values.contiguous()
        output = torch.empty_like(values)
        self._count(values.nbytes // self.size * (self.size - 1))
        work = self.run(self._all_to_all, _bytes(values), _bytes(output))
        shape = (self.size, values.shape[0] // self.size, *values.shape[1:])
        return Pending(self, work, output.view(shape))

    def all_gather(self, values: torch.Tensor) -> Pending:
        """Everybody's `values`, [ranks, ...]."""
        values = values.contiguous()
        output = values.new_empty((self.size, *values.shape))
        self._count(values.nbytes * (self.size - 1))
        work = self.run(self._all_gather, _bytes(values), _bytes(output))
        return Pending(self, work, output)

    def sum_(self, values: torch.Tensor, rank_order: bool) -> None:
        """`values` [rows, ...] become their sum over the ranks; 16-bit ones their mean, rounded
        once. `rank_order`: added in fp32 in the order of the ranks, with the C++ library's bits;
        else by the group's own all-reduce."""
        if self.size == 1:
            return
        is_float = values.dtype == torch.float32
        if not rank_order:
            self._count(2 * values.nbytes // self.size * (self.size - 1))
            Pending(self, self.run(self._all_reduce, values), values).wait()
            if not is_float:
                values.mul_(1.0 / self.size)
            return
        received = self.all_to_all(values).wait()
        total = received[0].float()
        for own in received[1:]:
            total = total + own.float()
        if not is_float:
            total = total * (1.0 / self.size)
        values.copy_(self.all_gather(total.to(values.dtype)).wait().view_as(values))

    def require_same(self, what: str, text: str) -> None:
        """Raises InvalidArgument on all ranks, with the first line that differs, unless `text`
        is the same on all of them."""
        encoded = text.encode()
        digest = hashlib.sha256(encoded).digest()[:8]
        hashes = self._gather_bytes(digest, 8)
        if all(own == hashes[0] for own in hashes):
            return
        longest = max(
            int.from_bytes(n, "little")
            for n in self._gather_bytes(len(encoded).to_bytes(8, "little"), 8)
        )
        texts = [
            own.rstrip(b"\0").decode()
            for own in self._gather_bytes(encoded.ljust(longest, b"\0"), longest)
        ]
        rank = next(r for r, own in enumerate(texts) if own != texts[0])
        raise InvalidArgument(
            f"{what} must be the same on all ranks: "
            + _first_difference(texts[0], texts[rank], rank)
        )

    def _gather_bytes(self, own: bytes, size: int) -> list[bytes]:
        values = torch.tensor(list(own), dtype=torch.uint8, device=self._device())
        gathered = self.all_gather(values).wait().cpu()
        return [bytes(row) for row in gathered.view(self.size, size).tolist()]

    def _device(self) -> torch.device:
        return torch.device("cpu")

    def _count(self, sent: int) -> None:
        self.bytes_sent += sent
        self.collectives += 1


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.view(-1).view(torch.uint8)


def _first_difference(first: str, other: str, rank: int) -> str:
    ours, theirs = first.splitlines(), other.splitlines()
    for k in range(max(len(ours), len(theirs))):
        a = ours[k] if k < len(ours) else "missing"
        b = theirs[k] if k < len(theirs) else "missing"
        if a != b:
            return f'line {k + 1} is "{a}" on rank 0 and "{b}" on rank {rank}'
    return "their ends differ"


class TorchExchange(Exchange):
    """Over a process group, which must be the optimizer's own."""

    def __init__(self, group: Group, device: torch.device) -> None:
        super().__init__(group.rank, group.size)
        import torch.distributed as dist

        self._dist = dist
        self._group = group.process_group
        self._own_device = device

    def _device(self) -> torch.device:
        return self._own_device

    def _all_to_all(self, values: torch.Tensor, output: torch.Tensor) -> Any:
        return self._dist.all_to_all_single(
            output, values, group=self._group, async_op=True
        )

    def _all_gather(self, values: torch.Tensor, output: torch.Tensor) -> Any:
        return self._dist.all_gather_into_tensor(
            output, values, group=self._group, async_op=True
        )

    def _all_reduce(self, values: torch.Tensor) -> Any:
        return self._dist.all_reduce(values, group=self._group, async_op=True)


class CommunicatorExchange(Exchange):
    """Over a communicator of the native module; tensors on the CPU."""

    def __init__(self, communicator: Any) -> None:
        super().__init__(communicator.rank, communicator.size)
        self._communicator = communicator

    def _all_to_all(self, values: torch.Tensor, output: torch.Tensor) -> None:
        self._communicator.all_to_all(values, output)

    def _all_gather(self, values: torch.Tensor, output: torch.Tensor) -> None:
        self._communicator.all_gather(values, output)

    def _all_reduce(self, values: torch.Tensor) -> None:
        self._communicator.all_reduce(values.view(-1))


class AloneExchange(Exchange):
    """A group of one, which sends nothing."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def _all_to_all(self, values: torch.Tensor, output: torch.Tensor) -> None:
        output.copy_(values)

    _all_gather = _all_to_all

    def _all_reduce(self, values: torch.Tensor) -> None:
        """The sum is what there is."""


def exchange_of(group: Any, device: torch.device) -> Exchange:
    """The exchange of a group: one of comm.group_for_device(), or a local rank's
    communicator."""
    if group is None or group.size == 1:
        return AloneExchange()
    if getattr(group, "process_group", None) is not None:
        return TorchExchange(group, device)
    if device.type != "cpu":
        raise Unavailable(
            f"device: a communicator moves memory of the CPU, parameters lie on {device}; "
            "give a process group of that device's backend"
        )
    return CommunicatorExchange(group)

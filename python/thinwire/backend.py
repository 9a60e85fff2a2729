# SPDX-License-Identifier: Apache-2.0
"""The backend "thinwire" of torch.distributed: low-bit sums for programs that only take
the name of a backend.

    torch.distributed.init_process_group("thinwire")

Since torch 2.14 the name works without an import, through an entry point. For an older
torch, `import thinwire.backend` comes first.

All-reduces and reduce-scatters over the world travel in THINWIRE_BITS, 8 by default or
4, with error feedback. They must be sums or averages of at least 65536 elements in fp32
or bf16. Everything else, including all collectives of other groups, passes unchanged
through the backend beneath, which THINWIRE_BACKEND names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed.distributed_c10d import Backend, PrefixStore, ProcessGroup
from torch.futures import Future
from torch.multiprocessing.reductions import StorageWeakRef

from . import _core
from .comm import communicator_for
from .errors import FailedPrecondition, InvalidArgument
from .hooks._codec import BLOCK, opened
from .hooks._exchange import Exchange
from .hooks._options import bits_of_environment
from .hooks._path import device_groups

NAME = "thinwire"
LEAST = 1 << 16
"""The smallest number of elements that travel in 4 or 8 bits."""
_BACKEND = "THINWIRE_BACKEND"
_SILENT = "fake"
"""A backend of torch for tests, which leaves results as they are."""
_DTYPES = (torch.float32, torch.bfloat16)
_work_of: Any = _distributed_c10d._create_work_from_future  # type: ignore[attr-defined]
_OPS = (dist.ReduceOp.SUM, dist.ReduceOp.AVG)


@dataclass
class _Residual:
    """The rounding errors of one tensor's sums, both in the values that this rank sent
    and in the means that it served. A residual lives as long as the tensor's storage.
    """

    storage: StorageWeakRef
    number: int
    """Number of the residual, the same on all ranks."""
    worker: torch.Tensor
    server: torch.Tensor


class _Sums:
    """Low-bit sums of tensors on one device."""

    def __init__(
        self,
        comm: _core.Communicator,
        group: ProcessGroup,
        like: torch.Tensor,
        bits: int,
    ) -> None:
        """Collective over the world. Raises FailedPrecondition if the backend beneath
        exchanges no bytes of the device.
        """
        try:
            groups = device_groups(comm, "device", group, [like], "auto")
        except InvalidArgument as error:
            raise FailedPrecondition(f"the backend {NAME}: {error}") from None
        assert groups is not None  # there are several ranks
        self._comm, self._groups = comm, groups
        self._exchange = Exchange(groups, bits)
        self._ranks = groups.hosts * groups.per_host
        hosts = comm.find_hosts(0) if groups.per_host > 1 else []
        # In the exchange, the ranks with one number on all hosts are side by side.
        self._order = [rank for part in zip(*hosts, strict=True) for rank in part]
        is_cpu = groups.device.type == "cpu"
        self._stream = None if is_cpu else torch.Stream(groups.device)
        self._residuals: dict[Any, _Residual] = {}
        self._made = 0

    @torch.no_grad()
    def work(self, result: torch.Tensor, given: torch.Tensor, factor: int) -> Any:
        """Queues the mean times `factor`. `result` receives all of the product, or a
        part. On a CPU the work is complete on return. Raises InvalidArgument on all
        ranks if they pass other tensors, because records of other sizes decode to
        wrong values.
        """
        future: Future[list[torch.Tensor]] = Future(
            devices=None if self._stream is None else [given.device]
        )
        with self._running(given, result):
            is_whole = result is given
            residual = self._residual_of(given, is_whole)
            what = (
                f"{residual.number} {given.dtype} {given.numel()} {factor} {is_whole}"
            )
            self._comm.require_same("the order of tensors in all_reduce()", what)
            mean = self._mean(self._rows(given, is_whole), residual, is_whole)
            result.copy_(mean.view(-1)[: result.numel()].mul_(factor).view_as(result))
            future.set_result([result])
        return _work_of(future)

    @contextmanager
    def _running(self, *tensors: torch.Tensor) -> Iterator[None]:
        """Runs its block on the stream of exchanges, after the work of the current
        stream.
        """
        if self._stream is None:
            yield
            return
        current = torch.accelerator.current_stream(tensors[0].device)
        self._stream.wait_event(current.record_event())
        for tensor in tensors:
            tensor.record_stream(self._stream)
        with self._stream:
            yield

    def _rows(self, given: torch.Tensor, is_whole: bool) -> torch.Tensor:
        """Returns the values as blocks in fp32, the same number for each rank. In a
        reduce-scatter, each rank also has the same number of values.
        """
        each = -(-given.numel() // self._ranks)
        count = -(-each // BLOCK)
        rows = given.new_zeros(self._ranks, count * BLOCK, dtype=torch.float32)
        if is_whole:
            rows.view(-1)[: given.numel()] = given.view(-1)
        else:
            rows[:, :each] = given.view(self._ranks, -1)
        return rows.view(-1, BLOCK)

    def _places(self, rows: torch.Tensor, is_whole: bool) -> torch.Tensor:
        """Returns the rows in the order of the exchange's places."""
        order = torch.arange(len(rows), device=rows.device)
        if is_whole or not self._order:
            return order
        return order.view(self._ranks, -1)[self._order].flatten()

    def _mean(
        self, rows: torch.Tensor, residual: _Residual, is_whole: bool
    ) -> torch.Tensor:
        """Returns the mean of all rows, or of this rank's rows. Elements of a residual
        that are not finite become 0. If all ranks need the mean, and the mean is not
        finite, the whole residual becomes 0.
        """
        exchange = self._exchange
        own = exchange.mean_of_host(rows, self._places(rows, is_whole))
        sent, error = exchange.send_up(own.add_(residual.worker))
        mean = exchange.mean_between(sent)
        if not is_whole:
            residual.worker = error.where(error.isfinite(), 0)
            return mean
        sent, lack = exchange.send_down(mean.add_(residual.server))
        q, step = opened(exchange.whole(sent), BLOCK, exchange.bits)
        is_finite = step.isfinite().all()
        residual.worker = error.where(is_finite, 0)
        residual.server = lack.where(is_finite, 0)
        return q.mul_(step)

    def _residual_of(self, given: torch.Tensor, is_whole: bool) -> _Residual:
        """Returns the residual of a tensor, which is 0 if the tensor is new."""
        storage = given.untyped_storage()
        place = storage.data_ptr(), given.storage_offset(), given.numel()
        key = (*place, given.dtype, is_whole)
        for old in [k for k, kept in self._residuals.items() if kept.storage.expired()]:
            del self._residuals[old]
        if key not in self._residuals:
            rows = -(-given.numel() // (BLOCK * self._ranks))
            zeros = given.new_zeros(rows, BLOCK, dtype=torch.float32)
            self._residuals[key] = _Residual(
                StorageWeakRef(storage),
                self._made,
                zeros.repeat(self._groups.hosts, 1),
                zeros,
            )
            self._made += 1
        return self._residuals[key]

    def close(self) -> None:
        self._groups.close()


class Group(ProcessGroup):
    """The world, which sums long tensors in low bits. With `bits` of 0, another group,
    without low-bit sums.
    """

    def __init__(self, options: Any, names: dict[str, str], bits: int) -> None:
        store, rank, size = options.store, options.group_rank, options.group_size
        # Python classes cannot use the other constructor.
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.beneath = ProcessGroup(store, rank, size)
        """A group of the same ranks, with exact sums."""
        self._store, self._bits = store, bits
        self._sums: dict[torch.device, _Sums] = {}
        self._comm: _core.Communicator | None = None
        made: dict[str, Any] = {}
        for device, name in names.items():
            if name not in made:
                made[name] = _made(name, options)
            kind = Backend.backend_type_map[name]
            for group in (self, self.beneath):
                group._register_backend(torch.device(device), kind, made[name])
                group._set_default_backend(Backend.backend_type_map[names["cpu"]])

    def getBackendName(self) -> str:
        return NAME

    def get_group_store(self) -> Any:
        return self._store

    def allreduce(self, *given: Any, **named: Any) -> Any:
        match given:
            case [[tensor], dist.AllreduceOptions() as opts] if not named:
                if self._takes(opts.reduceOp, tensor):
                    return self._work(tensor, tensor, opts.reduceOp)
        return self.beneath.allreduce(*given, **named)

    def reduce_scatter_single(self, *given: Any, **named: Any) -> Any:
        match given:
            case [result, values, dist.ReduceScatterOptions() as opts] if not named:
                is_part = values.numel() == self.size() * result.numel()
                if is_part and self._takes(opts.reduceOp, values, result):
                    return self._work(result, values, opts.reduceOp)
        return self.beneath.reduce_scatter_single(*given, **named)

    def _takes(self, op: Any, given: torch.Tensor, *others: torch.Tensor) -> bool:
        return (
            self._bits > 0
            and self.size() > 1
            and given.numel() >= LEAST
            and any(op == one for one in _OPS)
            and all(t.dtype in _DTYPES for t in (given, *others))
            and all(t.is_contiguous() for t in (given, *others))
            and all(t.device == given.device for t in others)
        )

    def _work(self, result: torch.Tensor, given: torch.Tensor, op: Any) -> Any:
        if given.device not in self._sums:
            if self._comm is None:
                self._comm = communicator_for(self)
            made = _Sums(self._comm, self, given, self._bits)
            self._sums[given.device] = made
        factor = self.size() if op == dist.ReduceOp.SUM else 1
        return self._sums[given.device].work(result, given, factor)

    def shutdown(self) -> None:
        for sums in self._sums.values():
            sums.close()
        self._sums.clear()
        if self._comm is not None:
            self._comm.close()
        super().shutdown()


def _forwarded(name: str) -> Any:
    def call(self: Group, *given: Any, **named: Any) -> Any:
        return getattr(self.beneath, name)(*given, **named)

    return call


# A Python class holds the interpreter's lock in collectives that it does not override.
# Threads of gloo may wait for that lock while they hold a lock of gloo.
for _name in (
    *("broadcast", "reduce", "barrier", "gather", "scatter", "send", "recv"),
    *("recv_anysource", "allgather", "_allgather_base", "all_gather_single"),
    *("allgather_coalesced", "allgather_into_tensor_coalesced", "reduce_scatter"),
    *("_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "alltoall"),
    *("alltoall_base", "all_to_all_single", "allreduce_coalesced"),
    *("all_gather_single_coalesced", "reduce_scatter_single_coalesced"),
):
    if hasattr(ProcessGroup, _name) and _name not in vars(Group):
        setattr(Group, _name, _forwarded(_name))


def register() -> None:
    """Makes the name "thinwire" known to torch.distributed. Local."""
    if NAME.upper() not in Backend._plugins:
        Backend.register_backend(NAME, _create, extended_api=True, devices=_devices())


def _create(options: Any, _: Any) -> Group:
    """Makes a group, for torch. Collective over its ranks.

    Raises InvalidArgument on all ranks of the group if a variable has an unknown value,
    or if ranks differ.
    """
    is_world = len(options.global_ranks_in_group) == 0
    said, names, bits = "", dict[str, str](), 0
    try:
        names, bits = _names(), bits_of_environment() or 8
    except InvalidArgument as error:
        said = str(error)
    if is_world:
        _agree(options, said, f"{bits} bits over {names}")
    elif said:
        raise InvalidArgument(said)
    return Group(options, names, bits if is_world else 0)


def _agree(options: Any, said: str, settings: str) -> None:
    """Raises InvalidArgument on all ranks if one rank has an error, or if settings
    differ from those on rank 0. The group does not exist yet, so ranks communicate
    through its store.
    """
    store = PrefixStore("thinwire/settings/", options.store)
    rank, size = options.group_rank, options.group_size
    store.set(f"{rank}", said and f"!{said}" or settings)
    if rank == 0:
        texts = [store.get(f"{k}").decode() for k in range(size)]
        found = next((k for k, text in enumerate(texts) if text != texts[0]), 0)
        verdict = f"rank {found} refused: {texts[found][1:]}"
        if texts[0].startswith("!"):
            verdict = f"rank 0 refused: {texts[0][1:]}"
        elif texts[found] == texts[0]:
            verdict = ""
        elif not texts[found].startswith("!"):
            verdict = (
                f"THINWIRE_BITS and {_BACKEND} must be the same on all ranks, got "
                f"{texts[0]} on rank 0 and {texts[found]} on rank {found}"
            )
        store.set("verdict", verdict)
    verdict = store.get("verdict").decode()
    if said or verdict:
        raise InvalidArgument(said or verdict)


def _devices() -> list[str]:
    here = torch.accelerator.current_accelerator(check_available=True)
    return ["cpu"] if here is None else ["cpu", here.type]


def _names() -> dict[str, str]:
    """Returns the backend beneath by kind of device. Local.

    THINWIRE_BACKEND is "gloo", or "cpu:gloo,cuda:nccl". A name alone is used for all
    devices that the backend supports. Other devices use torch's default, or gloo if
    there is no default.
    """
    text = os.environ.get(_BACKEND, "").lower()
    chosen: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        device, _, name = part.rpartition(":")
        if why_not := _why_not(device, name):
            there = ", ".join(n for n in Backend.backend_list if not _why_not("", n))
            raise InvalidArgument(
                f"{_BACKEND} must be a backend of this torch ({there}), or backends by "
                f'device such as cpu:gloo,cuda:nccl, got "{text}": {why_not}'
            )
        serves = [device] if device else Backend.backend_capability[name]
        chosen |= dict.fromkeys(serves, name)
    defaults = {d: Backend.default_device_backend_map.get(d, "") for d in _devices()}
    return {
        device: chosen.get(device) or (name if _is_there(name) else "gloo")
        for device, name in defaults.items()
    }


def _why_not(device: str, name: str) -> str:
    """Returns the reason why a backend cannot be the one beneath, or "" if it can. An
    empty `device` stands for all devices.
    """
    if name == _SILENT:
        return f'"{name}" exchanges nothing between ranks'
    if not _is_there(name):
        return f'it has no "{name}"'
    serves = [*Backend.backend_capability[name]]
    serves += [d for d, n in Backend.default_device_backend_map.items() if n == name]
    if device and device not in serves:
        return f'"{name}" is for {", ".join(dict.fromkeys(serves))}, not for "{device}"'
    return ""


def _is_there(name: str) -> bool:
    register_built_in = getattr(Backend, "_ensure_backend_registered", None)
    if register_built_in is not None and name:  # since torch 2.14
        register_built_in(name)
    known = name in Backend.backend_capability and name != NAME
    return known and dist.is_backend_available(name)


def _made(name: str, options: Any) -> Any:
    """Makes a backend of torch or of a plugin. Collective over the group's ranks."""
    rank, size = options.group_rank, options.group_size
    store, timeout = PrefixStore(f"{name}/", options.store), options.timeout
    plugin = Backend._plugins.get(name.upper())
    if plugin is not None and not plugin.extended_api:
        return plugin.creator_fn(store, rank, size, timeout)
    if plugin is not None:
        outer, options.store = options.store, store
        try:
            return plugin.creator_fn(options, None)
        finally:
            options.store = outer
    if name == "gloo":
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    made_of: Any = getattr(dist.distributed_c10d, f"ProcessGroup{name.upper()}", None)
    if made_of is None:
        raise FailedPrecondition(f"this torch cannot make a backend {name}")
    of_backend = made_of.Options()
    of_backend._timeout = timeout
    of_backend.global_ranks_in_group = options.global_ranks_in_group
    of_backend.group_name = options.group_id
    return made_of(store, rank, size, of_backend)


register()

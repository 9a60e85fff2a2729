# SPDX-License-Identifier: Apache-2.0
"""The ranks of one host, with the process group of their devices."""

from __future__ import annotations

import datetime
import os
import socket
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
import torch.distributed as dist

from .. import _core
from .._log import logger
from ..errors import CommFailure
from .groups import transport_of
from .lifetime import close_at_exit
from .process_group import ProcessGroupTransport, member_group
from .processes import Processes
from .watcher import LOOK_SECONDS, Watcher

_OF_THE_HOST = ("gloo", "mpi", "ucc")
"""Backends of torch.distributed that are not a device's own."""
_LATER_SECONDS = 0.75
_MOST_THREADS = 1024
_made: weakref.WeakKeyDictionary[
    dist.ProcessGroup, dict[tuple[str, tuple[int, ...]], dist.ProcessGroup]
] = weakref.WeakKeyDictionary()
"""Groups of devices, by the world in which they were made. Groups are kept, because
torch may give a new group the name, and thus the old addresses, of an ended one.
"""


class HostGroup:
    """The ranks of one host, of which the first is the leader. These ranks sum and
    share device tensors in a hidden process group of the device's backend, such as
    NCCL. Texts are sent over gloo.

    A rank that waits for the device's group notices within a second that another rank
    has died or given up. The waiting rank then ends the device's group, which all ranks
    notice.
    """

    ranks: list[int]
    """Ranks of the communicator that are on this host."""
    inside: _core.Communicator
    """Group of the same ranks over gloo."""
    between: _core.Communicator | None
    """Group of the leaders of all hosts; None on other ranks."""

    def __init__(
        self,
        comm: _core.Communicator,
        transport: ProcessGroupTransport,
        hosts: list[list[int]],
        device: torch.device,
        backend: str,
    ) -> None:
        """Collective over `comm`. Raises CommFailure if the device's group fails."""
        host = next(k for k, ranks in enumerate(hosts) if comm.rank in ranks)
        self.ranks = hosts[host]
        self.size = len(self.ranks)
        self.is_leader = comm.rank == self.ranks[0]
        self.num_hosts = len(hosts)
        self.backend = backend
        self._transport = transport
        self._rank = comm.rank
        self._device = device
        self._began: float | None = None
        self._what = ""
        self._failure: str | None = None
        self._queued: torch.Event | None = None
        self._timeout = comm.timeout
        # A rank that waits for a device must name the missing rank before other ranks
        # miss this one. The ranks of its host therefore time out first, then other
        # hosts' leaders, and finally the ranks that wait for their leader.
        part = transport.split(host, comm.rank, "ranks of a host", 0, comm.timeout)
        assert part is not None
        self.inside = close_at_exit(_core.over(part, comm.timeout + 2 * _LATER_SECONDS))
        color = 0 if self.is_leader else -1
        leaders = transport.split(color, comm.rank, "leaders", 1, comm.timeout)
        self.between = None
        if leaders is not None:
            made = _core.over(leaders, comm.timeout + _LATER_SECONDS)
            self.between = close_at_exit(made)
        self._processes = Processes(self.inside, self.ranks, comm.rank)
        Watcher(weakref.ref(self))
        with self.waiting("the first call"):
            self._group = self._connected(hosts)
            before = torch.accelerator.current_device_index()
            torch.accelerator.set_device_index(device.index or 0)
            first = torch.zeros(1, device=device)
            dist.all_reduce(first, group=self._group)
            first.item()
            torch.accelerator.set_device_index(before)

    def reduce(self, flat: torch.Tensor) -> None:
        """Queues the sum of `flat` for the leader. Collective in the host."""
        with self.waiting("a sum"):
            dist.reduce(flat, group_dst=0, group=self._group)
        self._note_queued()

    def broadcast(self, flat: torch.Tensor) -> None:
        with self.waiting("a broadcast"):
            dist.broadcast(flat, group_src=0, group=self._group)
        self._note_queued()

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Limits the time of its block to the time-out.

        Raises CommFailure if another rank has died or given up, if the time is over, or
        if the block raises RuntimeError.
        """
        self._require_alive()
        self._what, self._began = what, time.monotonic()
        try:
            yield
        except RuntimeError as error:
            self._began = None
            if self._failure is None:
                first = next(iter(str(error).splitlines()), type(error).__name__)
                # A connection may be closed before its process has ended.
                why = self._transport.failure() or self._dead(_LATER_SECONDS)
                self._fail(why or f"{self._named()}: {first[:300]}")
            raise CommFailure(self._failure) from error
        finally:
            self._began = None
        self._require_alive()

    def look(self) -> bool:
        """Ends the device's group if one of the group's ranks has died, or if its ranks
        would wait forever.
        """
        began = self._began
        if began is None:
            # The program itself may wait for the operation, at any place.
            if self._queued is not None and not self._queued.query():
                why = self._transport.failure() or self._dead()
                if why is not None:
                    self._fail(why)
            return self._failure is None
        if time.monotonic() - began < LOOK_SECONDS:
            return self._failure is None
        why = self._transport.failure() or self._dead()
        if why is None and time.monotonic() - began > self._timeout:
            others = ", ".join(str(r) for r in self.ranks if r != self._rank)
            why = f"{self._named()} timed out waiting for rank {others}"
        # The call may have ended meanwhile.
        if why is not None and self._began == began:
            self._fail(why)
        return self._failure is None

    def close(self) -> None:
        """Ends the watch and the communicators. The device's group stays."""
        self._failure = self._failure or "it is closed"
        self._queued = None
        self._processes.close()
        for comm in (self.between, self.inside):
            if comm is not None:
                comm.close()

    def give_up(self, reason: str) -> None:
        self._transport.give_up(reason)

    def _note_queued(self) -> None:
        with suppress(RuntimeError, NotImplementedError):  # the device has no events
            self._queued = torch.accelerator.current_stream(self._device).record_event()

    def _fail(self, why: str) -> None:
        self._failure = why
        self.give_up(why)
        # Some backends cannot end a pending call, which then runs to its own time-out.
        with suppress(RuntimeError, AttributeError):
            self._group._get_backend(self._device).abort()

    def _require_alive(self) -> None:
        if self._failure is not None:
            raise CommFailure(self._failure)

    def _named(self) -> str:
        ranks = ", ".join(map(str, self.ranks))
        return f"{self._what} of the ranks {ranks} over {self.backend}"

    def _dead(self, seconds: float = 0.0) -> str | None:
        """Returns a text about another rank whose process has ended, or ends within
        `seconds`.
        """
        rank = self._processes.ended(seconds)
        if rank is None:
            return None
        return f"rank {rank} has left or died during {self._named()}"

    def _connected(self, hosts: list[list[int]]) -> dist.ProcessGroup:
        world = member_group(None)
        of_world = dist.get_process_group_ranks(self._transport.group)
        known = _made.setdefault(world, {})
        # The limit is longer than Thinwire's own time-out, whose error names the
        # missing rank.
        timeout = datetime.timedelta(seconds=2 * self._timeout + 60)
        is_world = len(of_world) == dist.get_world_size()
        own = (self.backend, tuple(of_world[rank] for rank in self.ranks))
        for ranks in hosts if is_world else [self.ranks]:
            key = (self.backend, tuple(of_world[rank] for rank in ranks))
            if key not in known:
                known[key] = dist.new_group(
                    list(key[1]),
                    timeout=timeout,
                    backend=self.backend,
                    use_local_synchronization=not is_world,
                )
        return known[own]


def host_group_for(
    comm: _core.Communicator,
    device: torch.device,
    ranks_per_host: int,
    preferred: str = "",
) -> HostGroup | None:
    """Returns the group of this rank's host. Collective, over all ranks of `comm`.

    Returns None unless several hosts hold several ranks each. All ranks must be on
    devices of one kind, for which a process group exists. `preferred` names the backend
    to use if it exists and serves the device.
    """
    transport = transport_of(comm)
    if transport is None:
        return None
    backend = ""
    if device.type != "cpu":
        backend = _backend_for(transport.group, device, preferred)
    backends = set(comm.gather_texts(backend))
    if backends == {""}:
        return None
    hosts = comm.find_hosts(ranks_per_host)
    if not hosts:
        return None
    if len(backends) > 1:
        if comm.rank == 0:
            logger.info(
                "ranks of a host average through host memory: only some of them have a "
                "device with a process group"
            )
        return None
    return HostGroup(comm, transport, hosts, device, backend)


def threads_of_leader(asked: int, leaders: int = 1) -> int:
    """Returns the number of threads of a leader: `asked` if that is set, or 0 if
    THINWIRE_NUM_THREADS is set. The default is the number of usable cores divided by
    the leaders on the machine. Local.
    """
    if asked > 0 or os.environ.get("THINWIRE_NUM_THREADS"):
        return asked
    return min(max(1, len(os.sched_getaffinity(0)) // leaders), _MOST_THREADS)


def leaders_here(between: _core.Communicator) -> int:
    """Returns the number of leaders on this machine. Collective over `between`."""
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        machine = socket.gethostname()
    return between.gather_texts(machine).count(machine)


def _backend_for(group: dist.ProcessGroup, device: torch.device, preferred: str) -> str:
    """Returns the name of the device's process group; "" if there is none. Local."""
    serves = dist.Backend.backend_capability.get(preferred, ())
    if device.type in serves and dist.is_backend_available(preferred):
        return preferred
    with suppress(RuntimeError):
        name = group._get_backend(torch.device(device.type)).name().lower()
        if name not in _OF_THE_HOST:
            return str(name)
    try:
        default = dist.get_default_backend_for_device(device.type)
    except ValueError:
        return ""
    is_there = dist.is_backend_available(default) and default not in _OF_THE_HOST
    return default if is_there else ""

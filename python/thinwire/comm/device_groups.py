# SPDX-License-Identifier: Apache-2.0
"""Process groups of torch.distributed in which hooks exchange tensors of devices."""

from __future__ import annotations

import datetime
import json
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
import torch.distributed as dist

from .. import _core
from ..errors import CommFailure
from .groups import transport_of
from .lifetime import reason_of_end
from .process_group import member_group, short_text
from .processes import Processes
from .watcher import LOOK_SECONDS, Watcher

_NEVER_SENT = 1 << 29
"""A tag that is not used by messages."""
_MOST_TEXTS = 8


@dataclass
class _Made:
    """Groups of one set of hosts. Hooks reuse groups one after the other, because torch
    keeps all groups that it has made.
    """

    between: dist.ProcessGroup
    inside: dist.ProcessGroup | None
    is_free: bool = False


_made: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[str, list[_Made]]] = (
    weakref.WeakKeyDictionary()
)
"""Sets of groups by the world, the backend and the ranks. A set is the same on all
ranks of its groups.
"""


_pending: list[object] = []
"""Operations of gloo, which ends the process if one is destroyed."""


class DeviceGroups:
    """The groups of one hook: the ranks of this rank's host, and the ranks with the same
    number on all hosts. If hosts are flat, each rank is a host.

    A rank that waits for others notices within a second that another rank has given up.
    The wait ends after the time-out, or at most twice the time-out if a rank must be
    named.
    """

    def __init__(
        self,
        comm: _core.Communicator,
        group: dist.ProcessGroup,
        device: torch.device,
        backend: str,
        hosts: list[list[int]],
    ) -> None:
        """Creates the groups, or reuses groups of a hook that has ended. Collective
        over `comm`, which has the same ranks as `group`. `hosts` lists the ranks of
        each host, and is empty if hosts are flat.
        """
        hosts = hosts or [[rank] for rank in range(comm.size)]
        self.host = next(k for k, ranks in enumerate(hosts) if comm.rank in ranks)
        self.hosts, self.per_host = len(hosts), len(hosts[self.host])
        self.local = sorted(hosts[self.host]).index(comm.rank)
        self.device, self.backend = device, backend
        self.wait_seconds = 0.0
        """Time that the host has waited, since construction."""
        self._comm, self._transport = comm, transport_of(comm)
        self._began: float | None = None
        self._queued: torch.Event | None = None
        self._queued_at = 0.0
        self._has_failed = False
        self._reason: str | None = None
        """Reason why this rank has ended the groups, if the error occurred here."""
        self._is_given_back = False
        self._taken = _take(comm, group, backend, hosts)
        self.between, self.inside = self._taken.between, self._taken.inside
        self.number = self.between.rank()
        """This rank's index in its group between hosts, in rank order."""
        self._processes = Processes(comm, range(comm.size), comm.rank)
        Watcher(weakref.ref(self))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time of its body. Raises CommFailure if other ranks have given up
        or left, or if the body raises RuntimeError.
        """
        if self._has_failed:
            raise self.failure(RuntimeError("an earlier one has failed"))
        self._began = began = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            self._began = None
            raise self.failure(error) from error
        finally:
            self._began = None
            self.wait_seconds += time.monotonic() - began
        if self.device.type != "cpu":
            self._queued = torch.accelerator.current_stream(self.device).record_event()
            self._queued_at = time.monotonic()

    def failure(self, error: Exception) -> CommFailure:
        """Ends the groups after an error, so that no rank waits for this one. Returns
        an error that names the lost rank, if any.
        """
        self.end()
        if self._reason is not None:
            self._comm.give_up(self._reason)
            return CommFailure(f"this rank gave up: {self._reason}")
        try:
            # These exchanges name lost ranks. All ranks get here, because their groups
            # have also ended.
            self._comm.barrier()
            texts = self._comm.gather_texts(short_text(error))
        except CommFailure as named:
            return named
        return CommFailure(f"an exchange over {self.backend}: {_on_ranks(texts)}")

    def look(self) -> bool:
        """Ends the groups if this rank or its device waits longer than the time-out, or
        for a rank that has given up or ended.
        """
        began, queued = self._began, self._queued
        if began is None:
            began, is_done = self._queued_at, queued is None or queued.query()
        else:
            is_done = False
        waited = 0.0 if is_done else time.monotonic() - began
        is_late = waited > self._comm.timeout
        if is_late or (waited > LOOK_SECONDS and self._is_in_vain()):
            self.end()
        return not self._has_failed

    def _is_in_vain(self) -> bool:
        if self._transport is not None and self._transport.failure() is not None:
            return True
        return self._processes.ended() is not None

    def end(self, reason: str | None = None) -> None:
        """Ends exchanges in flight, here and on other ranks. The groups cannot be used
        again. If a thread of this rank is in an exchange, or enters one later, other
        ranks receive the reason, unless it is None. Local.
        """
        if self._is_given_back:
            return
        if not self._has_failed:
            self._reason = reason
        self._has_failed = True
        for group in (self.between, self.inside):
            if group is not None:
                with suppress(RuntimeError, AttributeError):
                    self._end(group)

    def _end(self, group: dist.ProcessGroup) -> None:
        if self.backend != "gloo":
            group._get_backend(self.device).abort()
            return
        # gloo's abort() does nothing, but a wait that times out closes the connection.
        never = torch.empty(1, dtype=torch.uint8)
        for peer in range(group.size()):
            if peer == group.rank():
                continue
            with suppress(RuntimeError):
                work = group.recv([never], peer, _NEVER_SENT)
                _pending.append((work, never))
                work.wait(datetime.timedelta(milliseconds=1))

    def close(self, *, in_flight: bool = False) -> None:
        """Returns the groups for use by other hooks. Ends an exchange in flight, for
        example if its user has not waited for it yet. Local.
        """
        if in_flight or self._began is not None:
            self.end(reason_of_end() or "its hook was closed during an exchange")
        self._queued = None
        self._processes.close()
        self._is_given_back = True
        self._taken.is_free = not self._has_failed


def backend_for(group: dist.ProcessGroup, device: torch.device) -> str:
    """Returns the name of the group's backend for this kind of device, or "" if there
    is none. Local.
    """
    with suppress(RuntimeError):
        return str(group._get_backend(torch.device(device.type)).name()).lower()
    return ""


def _on_ranks(texts: list[str]) -> str:
    """Returns a few different errors, each with the first rank on which it occurred."""
    ranks = {text: rank for rank, text in reversed([*enumerate(texts)])}
    some = sorted(ranks.items(), key=lambda item: item[1])[:_MOST_TEXTS]
    return "; ".join(f"on rank {rank}: {text}" for text, rank in some)


def _take(
    comm: _core.Communicator,
    group: dist.ProcessGroup,
    backend: str,
    hosts: list[list[int]],
) -> _Made:
    world = member_group(None)
    of_world = dist.get_process_group_ranks(group)
    named = [[of_world[rank] for rank in ranks] for ranks in hosts]
    all_made = _made.setdefault(world, {}).setdefault(f"{backend} {named}", [])
    free = [k for k, made in enumerate(all_made) if made.is_free]
    # A hook may have ended on some ranks only.
    texts = comm.gather_texts(json.dumps(free))
    everywhere = set(free).intersection(*map(json.loads, texts))
    if everywhere:
        made = all_made[min(everywhere)]
        made.is_free = False
        return made
    between = _group_with(comm, group, backend, zip(*named, strict=True))
    several = len(named[0]) > 1
    inside = _group_with(comm, group, backend, named) if several else None
    assert between is not None
    all_made.append(_Made(between, inside))
    return all_made[-1]


def _group_with(
    comm: _core.Communicator,
    group: dist.ProcessGroup,
    backend: str,
    sets: Iterable[Sequence[int]],
) -> dist.ProcessGroup | None:
    """Makes a group of each set of world ranks. Returns the group of this rank.
    Collective over `comm`.
    """
    own = dist.get_rank()
    is_world = group.size() == dist.get_world_size()
    # The limit is longer than the watcher's, after which an error names the missing
    # rank.
    timeout = datetime.timedelta(seconds=2 * comm.timeout + 60)
    found = None
    for ranks in sets:
        if own not in ranks and not is_world:
            continue
        made = dist.new_group(
            sorted(ranks),
            timeout=timeout,
            backend=backend,
            use_local_synchronization=not is_world,
        )
        found = made if own in ranks else found
    return found

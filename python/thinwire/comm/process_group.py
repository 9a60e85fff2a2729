# SPDX-License-Identifier: Apache-2.0
"""Any process group of torch.distributed as a transport."""

from __future__ import annotations

import datetime
import os
import re
import socket
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, Work

from ..errors import CommFailure, InvalidArgument, Unavailable
from .duration import timeout_of
from .lifetime import call_if_helpers_hang, keep_in_children
from .transport import Broken, ChannelTransport, Messages
from .watcher import LOOK_SECONDS, Watcher

_FIRST = "gave_up"
_NEVER_SENT = 1 << 30
"""A tag that no message has."""
_LONG = 1 << 15
"""Bytes of a message that is sent in two parts."""
_store_ports: set[int] = set()


class ProcessGroupTransport(ChannelTransport):
    """A gloo group of its own beside `process_group` (None: the world of
    torch.distributed).

    Collective over that group. Messages are CPU memory, so this is gloo also beside
    NCCL, HCCL and XCCL. The user's collectives stay on the user's group. The new one is
    not registered in torch.distributed, so destroy_process_group() does not touch it.

    timeout: seconds to find the other ranks; None: THINWIRE_TIMEOUT, else the group's.

    Raises InvalidArgument unless this rank is in the group, Unavailable without gloo or
    a store, and CommFailure if a rank does not arrive.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        timeout: float | datetime.timedelta | None = None,
    ) -> None:
        group = member_group(process_group)
        if not dist.is_gloo_available():
            raise Unavailable(
                "process_group: CPU tensors need gloo, which this torch lacks"
            )
        seconds = timeout_of(timeout, group)
        rank, size = group.rank(), group.size()
        store = _own_store(group, rank)
        _meet(store, rank, size, seconds)
        try:
            gloo = keep_in_children(
                dist.ProcessGroupGloo(
                    store, rank, size, datetime.timedelta(seconds=seconds)
                )
            )
        except RuntimeError as error:
            raise CommFailure(
                f"gloo cannot connect the ranks: {_short(error)}"
            ) from None
        self.group = group
        self._gloo = _GlooChannel(gloo, store, rank)
        super().__init__("torch:gloo", self._gloo, rank, size)

    def failure(self) -> str | None:
        """Returns why all ranks must end, if one has given up; asks the store."""
        if self._gloo.given_up is not None:
            return f"this rank gave up: {self._gloo.given_up}"
        peer = self._gloo.watcher.briefly(self._gloo.first_to_give_up)
        if peer is None:
            return None
        reason = self._gloo.reason_of(peer)
        return f"rank {peer} gave up: {reason or 'its reason is lost'}"


class _GlooChannel:
    """A channel through the group's own send() and recv(), which cost half."""

    def __init__(self, group: Any, store: Store, rank: int) -> None:
        self.given_up: str | None = None
        self._group, self._store, self._rank = group, store, rank
        self._broken: list[object] = []
        self._first_to_give_up: int | None = None
        self._begun: dict[int, float] = {}
        """When each exchange in flight began, by thread."""
        self.watcher = Watcher(weakref.ref(self))

    def move(
        self, receives: Messages, sends: Messages, salt: int, seconds: float
    ) -> None:
        begin = time.monotonic()
        end = begin + seconds
        works: list[tuple[int, Work, torch.Tensor]] = []
        peer, done = -1, 0
        thread = threading.get_ident()
        self._begun[thread] = begin
        try:
            for post, messages in (
                (self._group.recv, receives),
                (self._group.send, sends),
            ):
                for peer, memory in messages:
                    for part in _parts(torch.frombuffer(memory, dtype=torch.uint8)):
                        work = post([part], peer, _tag(salt, part.numel()))
                        works.append((peer, work, part))
            works.sort(key=lambda posted: posted[2].numel() > 1)  # last bytes first
            for done, (peer, work, _) in enumerate(works):
                # 0 would mean no limit at all.
                left = max(end - time.monotonic(), 0.001)
                work.wait(datetime.timedelta(seconds=left))
        except RuntimeError as error:
            # gloo ends the process if a pending operation is destroyed. So they live on
            # here, and do nothing after give_up() has closed the connections.
            self._broken.append(works)
            if self._first_to_give_up is not None:
                raise Broken([self._first_to_give_up], _short(error)) from None
            if time.monotonic() < end - 0.002:
                raise Broken([peer], _short(error)) from None
            # gloo would time out in a second wait for a message that is here.
            raise Broken(_unfinished(works[done:]) or [peer], None) from None
        finally:
            del self._begun[thread]

    def reason_of(self, peer: int) -> str | None:
        def read() -> str | None:
            key = _gave_up(peer)
            return self._store.get(key).decode() if self._store.check([key]) else None

        return self.watcher.briefly(read)

    def give_up(self, reason: str) -> None:
        def tell() -> None:
            self._store.set(_gave_up(self._rank), reason[:500])
            self._store.compare_set(_FIRST, "", str(self._rank))

        self.watcher.briefly(tell)
        self._close_connections()

    def look(self) -> bool:
        """Ends exchanges in flight if a rank has given up. True: look again."""
        now = time.monotonic()
        if all(now - begin < LOOK_SECONDS for begin in list(self._begun.values())):
            return True
        try:
            if self.first_to_give_up() is None:
                return True
        except RuntimeError:
            return False  # the store is gone with its host
        self._close_connections()
        return False

    def first_to_give_up(self) -> int | None:
        """Returns the rank, if there is one. Raises RuntimeError if the store is gone."""
        if self._first_to_give_up is None and self._store.check([_FIRST]):
            self._first_to_give_up = int(self._store.get(_FIRST))
        return self._first_to_give_up

    def _close_connections(self) -> None:
        """Ends all exchanges by a wait that times out, since abort() does nothing."""
        never = torch.empty(1, dtype=torch.uint8)
        for peer in range(self._group.size()):
            if peer == self._rank:
                continue
            try:
                work = self._group.recv([never], peer, _NEVER_SENT)
                self._broken.append((work, never))
                work.wait(datetime.timedelta(milliseconds=1))
            except RuntimeError:
                pass  # this connection is already closed, or all are


def member_group(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Returns `process_group`, or the world for None. This rank must be in it."""
    group = dist.group.WORLD if process_group is None else process_group
    if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
        raise InvalidArgument(
            f"process_group: this rank is not a member of it: {group!r}"
        )
    return keep_in_children(group)


def _own_store(group: dist.ProcessGroup, rank: int) -> Store:
    """Returns a part of the store. Names are counted per group and rank. A second
    group, or one after another has been closed, thus does not find the first one's
    addresses.
    """
    try:
        store = group.get_group_store()
        count = store.add(f"thinwire/groups/{rank}", 1)
    except RuntimeError as error:
        raise Unavailable(
            f"process_group: its backend has no store to find the ranks by: {_short(error)}"
        ) from None
    of_all = getattr(store, "_underlying_non_prefix_store", store)
    if isinstance(of_all, dist.TCPStore):
        _store_ports.add(of_all.port)
    return PrefixStore(f"thinwire/{count}/", store)


@call_if_helpers_hang
def _disconnect_from_stores() -> None:
    """Ends the connections to stores whose hosts do not answer.

    torch has no call that interrupts a thread inside of a store. Such a thread would end
    the process by a signal if it came back after the interpreter's end.
    """
    for name in os.listdir("/proc/self/fd"):
        # It may be closed meanwhile, or no socket.
        with (
            suppress(OSError, ValueError),
            socket.socket(fileno=os.dup(int(name))) as connection,
        ):
            is_ip = connection.family in (socket.AF_INET, socket.AF_INET6)
            if is_ip and connection.getpeername()[1] in _store_ports:
                connection.shutdown(socket.SHUT_RDWR)


def _meet(store: Store, rank: int, size: int, seconds: float) -> None:
    """Waits for all ranks; gloo alone would not name those that are missing."""
    end = time.monotonic() + seconds
    here = [f"here/{peer}" for peer in range(size)]
    try:
        store.set(here[rank], "")
        pause = 0.0005
        while not store.check(here):
            if time.monotonic() > end:
                late = [peer for peer, key in enumerate(here) if not store.check([key])]
                names = ", ".join(map(str, late))
                raise CommFailure(
                    f"timed out waiting for rank{'s' if len(late) > 1 else ''} {names} "
                    "to make the group"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
    except dist.DistError as error:
        raise CommFailure(
            f"the store of torch.distributed is gone: {_short(error)}"
        ) from None


def _parts(data: torch.Tensor) -> list[torch.Tensor]:
    """Cuts off the last byte; gloo does not interrupt a message that has begun."""
    return [data] if data.numel() < _LONG else [data[:-1], data[-1:]]


def _tag(salt: int, size: int) -> int:
    """Returns a tag for the size, since gloo ends the process if sizes differ."""
    return (salt ^ size * 40503) & 0x3FFFFFFF


def _unfinished(works: list[tuple[int, Work, torch.Tensor]]) -> list[int]:
    peers = set()
    for peer, work, _ in works:
        try:
            work.wait(datetime.timedelta(milliseconds=1))
        except RuntimeError:
            peers.add(peer)
    return sorted(peers)


def _gave_up(rank: int) -> str:
    return f"gave_up/{rank}"


def _short(error: Exception) -> str:
    """Returns the connection and its failure out of a text of gloo's."""
    first = next(iter(str(error).splitlines()), "")
    return (
        re.sub(r"^\[[^\]]*\]\s*", "", first).split(". ")[0][:200]
        or type(error).__name__
    )

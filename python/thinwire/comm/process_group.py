# SPDX-License-Identifier: Apache-2.0
"""Any process group of torch.distributed as a transport."""

from __future__ import annotations

import datetime
import json
import os
import re
import socket
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, Work

from ..errors import CommFailure, InvalidArgument, Unavailable
from .calls import different, names_of_calls
from .duration import timeout_of
from .lifetime import call_if_helpers_hang, keep_in_children
from .transport import Broken, ChannelTransport, Exchange, Messages
from .watcher import LOOK_SECONDS, Watcher

_FIRST = "gave_up"
_NEVER_SENT = 1 << 30
"""A tag that is not used by messages."""
_LONG = 1 << 15
"""Messages of at least this many bytes are sent in two parts."""
_TELL_SECONDS = 1.0
"""Time in an exchange after which a rank reports its call to the others."""
_PEERS_TO_LOOK_AT = 4
_CLOSED_HERE = "Application timeout caused pair closure"
_REASON_SECONDS = 3.0
_store_ports: set[int] = set()


class ProcessGroupTransport(ChannelTransport):
    """A separate gloo group with the ranks of `process_group` (None: the world of
    torch.distributed).

    Collective over that group. Messages are in CPU memory, so the transport uses gloo
    even if `process_group` uses NCCL, HCCL or XCCL. The user's collectives remain on
    the user's group. The gloo group is not registered in torch.distributed, so
    destroy_process_group() does not touch it.

    timeout: seconds to find the other ranks. None means THINWIRE_TIMEOUT or, if that is
      unset, the group's time-out.

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
        number, store, whereabouts = _own_store(group, rank)
        _meet(number, store, whereabouts, size, seconds)
        try:
            gloo = keep_in_children(
                dist.ProcessGroupGloo(
                    store, rank, size, datetime.timedelta(seconds=seconds)
                )
            )
        except RuntimeError as error:
            raise CommFailure(
                f"gloo cannot connect the ranks: {short_text(error)}"
            ) from None
        self.group = group
        self._gloo = _GlooChannel(gloo, number, store, whereabouts)
        super().__init__("torch:gloo", self._gloo, rank, size)
        self._gloo.names = self.names

    def failure(self) -> str | None:
        """Returns the reason of a rank that has given up, if any. Asks the store."""
        if self._gloo.given_up is not None:
            return f"this rank gave up: {self._gloo.given_up}"
        peer = self._gloo.watcher.briefly(self._gloo.first_to_give_up)
        if peer is None:
            return None
        reason = self._gloo.reason_of(peer)
        return f"rank {peer} gave up: {reason or 'its reason is lost'}"


@dataclass
class _Flight:
    """An exchange that a thread is in."""

    begin: float
    place: str
    operation: str
    sends: dict[int, int]
    """Bytes for each peer."""
    receives: dict[int, int]


class _Whereabouts:
    """The exchanges in which ranks of a process group have waited for some time."""

    def __init__(self, store: Store, rank: int) -> None:
        self.rank = rank
        self._store = PrefixStore("thinwire/where/", store)
        self._own: dict[str, list[Any]] = {}
        self._left: set[int] = set()
        self._lock = threading.Lock()

    def tell(self, channel: int, flight: _Flight | None) -> None:
        """Publishes the exchange that this rank is in on a channel, if it has
        changed."""
        with self._lock:
            self._tell(channel, flight)

    def _tell(self, channel: int, flight: _Flight | None) -> None:
        if flight is None and channel in self._left:
            return
        gone = {channel} if flight is None else {channel, *self._left}
        own = {key: where for key, where in self._own.items() if int(key) not in gone}
        if flight is not None:
            sizes = flight.receives.values() or [0]
            own[str(channel)] = [
                flight.place,
                flight.operation,
                names_of_calls(),
                min(sizes),
                max(sizes),
            ]
        if own != self._own:
            self._own = own
            self._store.set(str(self.rank), json.dumps(own))

    def leave(self, channel: int) -> None:
        """Keeps the published exchange of a failed channel until this rank publishes
        its next one, because ranks that time out later read it.
        """
        with self._lock:
            self._left.add(channel)

    def of(self, peer: int) -> dict[str, list[Any]]:
        """Returns, by channel, the place, the operation, the calls, and the smallest
        and largest number of bytes that `peer` expects from one rank.
        """
        key = str(peer)
        return json.loads(self._store.get(key)) if self._store.check([key]) else {}

    def in_another_call(self, peer: int) -> str:
        """Returns the calls that a rank is in, or "" unless this rank is in other
        calls.
        """
        calls = [where[2] for where in self.of(peer).values()]
        own = names_of_calls()
        return str(calls[0]) if own and calls and calls[0] and own not in calls else ""


_whereabouts: weakref.WeakKeyDictionary[dist.ProcessGroup, _Whereabouts] = (
    weakref.WeakKeyDictionary()
)


class _GlooChannel:
    """A channel through the group's own send() and recv(), which take half the time of
    the functions in torch.distributed.
    """

    def __init__(
        self, group: Any, number: int, store: Store, whereabouts: _Whereabouts
    ) -> None:
        self.given_up: str | None = None
        self.names: list[int] = []
        self._group, self._number, self._store = group, number, store
        self._whereabouts, self._rank = whereabouts, whereabouts.rank
        self._broken: list[object] = []
        self._first_to_give_up: int | None = None
        self._elsewhere = ""
        """The text of an error if another rank is in another call."""
        self._flights: dict[int, _Flight] = {}
        """The exchanges in flight, by thread."""
        self.watcher = Watcher(weakref.ref(self))

    def move(
        self, receives: Messages, sends: Messages, of: Exchange, seconds: float
    ) -> None:
        begin = time.monotonic()
        end = begin + seconds
        works: list[tuple[int, Work, torch.Tensor]] = []
        peer, done = -1, 0
        thread = threading.get_ident()
        sizes = [{peer: len(m) for peer, m in part} for part in (sends, receives)]
        self._flights[thread] = _Flight(begin, of.place, of.operation, *sizes)
        try:
            for post, messages in (
                (self._group.recv, receives),
                (self._group.send, sends),
            ):
                for peer, memory in messages:
                    for part in _parts(torch.frombuffer(memory, dtype=torch.uint8)):
                        work = post([part], peer, _tag(of.salt, part.numel()))
                        works.append((peer, work, part))
            works.sort(key=lambda posted: posted[2].numel() > 1)  # last bytes first
            for done, (peer, work, _) in enumerate(works):
                # 0 would mean no limit at all.
                left = max(end - time.monotonic(), 0.001)
                work.wait(datetime.timedelta(seconds=left))
        except RuntimeError as error:
            # gloo ends the process if a pending operation is destroyed. Pending
            # operations are therefore kept, although they do nothing after give_up()
            # has closed the connections.
            self._broken.append(works)
            if self._elsewhere:
                raise Broken([peer], None, self._elsewhere) from None
            if self._first_to_give_up is not None:
                raise Broken([self._first_to_give_up], short_text(error)) from None
            if time.monotonic() < end - 0.002:
                if _CLOSED_HERE in str(error):
                    self._wait_for_reason()
                raise Broken([peer], short_text(error)) from None
            # If a message has arrived, a second wait for it times out in gloo.
            late = _unfinished(works[done:]) or [peer]
            raise Broken(late, None, self._in_another_call(late)) from None
        finally:
            del self._flights[thread]

    def _wait_for_reason(self) -> None:
        """Waits until another thread has given the reason why it ended this thread's
        exchange. When one exchange reaches its time limit, gloo ends all of them.
        """
        end = time.monotonic() + _REASON_SECONDS
        while self.given_up is None and time.monotonic() < end:
            time.sleep(0.01)

    def reason_of(self, peer: int) -> str | None:
        def read() -> str | None:
            key = _gave_up(peer)
            return self._store.get(key).decode() if self._store.check([key]) else None

        return self.watcher.briefly(read)

    def give_up(self, reason: str) -> None:
        self.watcher.briefly(lambda: self._tell(reason))
        self._close_connections()

    def _tell(self, reason: str) -> None:
        self._store.set(_gave_up(self._rank), reason[:500])
        self._store.compare_set(_FIRST, "", str(self._rank))
        self._whereabouts.leave(self._number)

    def look(self) -> bool:
        """Ends exchanges in flight if a rank has given up or is in another call.
        Returns whether to look again.
        """
        now = time.monotonic()
        flights = [
            f for f in list(self._flights.values()) if now - f.begin > LOOK_SECONDS
        ]
        long = next((f for f in flights if now - f.begin > _TELL_SECONDS), None)
        try:
            self._whereabouts.tell(self._number, long)
            if not flights:
                return True
            if self.first_to_give_up() is None:
                if long is None or not self._is_elsewhere(long):
                    return True
                self._tell(self._elsewhere)
        except RuntimeError:
            return False  # the store is gone with its host
        self._close_connections()
        return False

    def _is_elsewhere(self, flight: _Flight) -> bool:
        """Returns whether a peer waits at the same place for another operation or size,
        so that both would wait forever. Asking the first peers suffices, because a
        single rank in another call detects the difference itself.
        """
        for peer in sorted(flight.sends)[:_PEERS_TO_LOOK_AT]:
            there = self._whereabouts.of(peer).get(str(self._number))
            if there is None or there[0] != flight.place:
                continue
            operation, call, least, most = there[1:]
            size = flight.sends[peer]
            if operation == flight.operation and least <= size <= most:
                continue
            own = names_of_calls()
            if own != call:
                both = [own or flight.operation, call or operation]
            else:
                both = [
                    f"{flight.operation} of {size} bytes",
                    f"{operation} of {most} bytes",
                ]
            ranks = [self.names[self._rank], self.names[peer]]
            self._elsewhere = different(dict(zip(ranks, both, strict=True)))
            return True
        return False

    def _in_another_call(self, peers: list[int]) -> str:
        """Returns the text of an error if one of the peers is in another call, else ""."""
        for peer in peers[:_PEERS_TO_LOOK_AT]:
            call = self.watcher.briefly(
                partial(self._whereabouts.in_another_call, peer)
            )
            if call:
                own = {self.names[self._rank]: names_of_calls()}
                return different({**own, self.names[peer]: call})
        return ""

    def first_to_give_up(self) -> int | None:
        """Returns the first rank that gave up, if any. Raises RuntimeError if the store
        is gone."""
        if self._first_to_give_up is None and self._store.check([_FIRST]):
            self._first_to_give_up = int(self._store.get(_FIRST))
        return self._first_to_give_up

    def _close_connections(self) -> None:
        """Ends all exchanges by a wait that times out, because gloo's abort() does
        nothing.
        """
        never = torch.empty(1, dtype=torch.uint8)
        for peer in range(self._group.size()):
            if peer == self._rank:
                continue
            try:
                work = self._group.recv([never], peer, _NEVER_SENT)
                self._broken.append((work, never))
                work.wait(datetime.timedelta(milliseconds=1))
            except RuntimeError:
                pass  # one or all connections are already closed


def member_group(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Returns `process_group`, or the world for None. This rank must be a member."""
    group = dist.group.WORLD if process_group is None else process_group
    if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
        raise InvalidArgument(
            f"process_group: this rank is not a member of it: {group!r}"
        )
    return keep_in_children(group)


def _own_store(group: dist.ProcessGroup, rank: int) -> tuple[int, Store, _Whereabouts]:
    """Returns the number of a new group, its part of the store, and the ranks'
    whereabouts. Numbers are counted per group and rank, so that a later group does not
    find addresses of an earlier group.
    """
    try:
        store = group.get_group_store()
        count = store.add(f"thinwire/groups/{rank}", 1)
    except RuntimeError as error:
        raise Unavailable(
            f"process_group: its backend has no store to find the ranks by: {short_text(error)}"
        ) from None
    of_all = getattr(store, "_underlying_non_prefix_store", store)
    if isinstance(of_all, dist.TCPStore):
        _store_ports.add(of_all.port)
    whereabouts = _whereabouts.setdefault(group, _Whereabouts(store, rank))
    return count, PrefixStore(f"thinwire/{count}/", store), whereabouts


@call_if_helpers_hang
def _disconnect_from_stores() -> None:
    """Ends the connections to stores whose hosts do not answer.

    torch has no call that interrupts a thread inside of a store. Such a thread would
    end the process by a signal if it returned after the interpreter's end.
    """
    for name in os.listdir("/proc/self/fd"):
        # The descriptor may be closed by now, or may not be a socket.
        with (
            suppress(OSError, ValueError),
            socket.socket(fileno=os.dup(int(name))) as connection,
        ):
            is_ip = connection.family in (socket.AF_INET, socket.AF_INET6)
            if is_ip and connection.getpeername()[1] in _store_ports:
                connection.shutdown(socket.SHUT_RDWR)


def _meet(
    number: int, store: Store, whereabouts: _Whereabouts, size: int, seconds: float
) -> None:
    """Waits for all ranks, because gloo would not name missing ranks."""
    begin = time.monotonic()
    here = [f"here/{peer}" for peer in range(size)]
    try:
        store.set(here[whereabouts.rank], "")
        pause = 0.0005
        while not store.check(here):
            if time.monotonic() > begin + seconds:
                late = [peer for peer, key in enumerate(here) if not store.check([key])]
                raise CommFailure(_missing(late, whereabouts))
            if time.monotonic() > begin + _TELL_SECONDS:
                whereabouts.tell(number, _Flight(begin, "", "making a group", {}, {}))
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        whereabouts.tell(number, None)
    except dist.DistError as error:
        raise CommFailure(
            f"the store of torch.distributed is gone: {short_text(error)}"
        ) from None


def _missing(late: list[int], whereabouts: _Whereabouts) -> str:
    for peer in late[:_PEERS_TO_LOOK_AT]:
        if call := whereabouts.in_another_call(peer):
            return different({whereabouts.rank: names_of_calls(), peer: call})
    names = ", ".join(map(str, late))
    plural = "s" if len(late) > 1 else ""
    return f"timed out waiting for rank{plural} {names} to make the group"


def _parts(data: torch.Tensor) -> list[torch.Tensor]:
    """Separates the last byte, because gloo does not interrupt a message that has
    begun."""
    return [data] if data.numel() < _LONG else [data[:-1], data[-1:]]


def _tag(salt: int, size: int) -> int:
    """Returns a tag for the size, because gloo ends the process if sizes differ."""
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


def short_text(error: Exception) -> str:
    """Extracts the connection and its failure from an error text of gloo. Local."""
    first = next(iter(str(error).splitlines()), "")
    return (
        re.sub(r"^\[[^\]]*\]\s*", "", first).split(". ")[0][:200]
        or type(error).__name__
    )

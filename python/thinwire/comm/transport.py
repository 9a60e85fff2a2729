# SPDX-License-Identifier: Apache-2.0
"""Common parts of this package's transports: ranks, tags, parts and texts of failures."""

from __future__ import annotations

import copy
import os
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

from ..errors import CommFailure, FailedPrecondition
from .calls import names_of_calls

Messages = Sequence[tuple[int, memoryview]]
"""A peer, and the bytes for it or from it."""


class Broken(Exception):
    """A channel could not move the messages of some peers."""

    def __init__(self, peers: list[int], cause: str | None, text: str = "") -> None:
        """Creates the exception. A `cause` of None stands for the time limit. `text`,
        if given, is the complete message.
        """
        super().__init__(peers, cause)
        self.peers, self.cause, self.text = peers, cause, text


class Exchange(NamedTuple):
    """The properties of an exchange that are equal on all of its ranks."""

    salt: int
    place: str
    """Text of the operation; must be the same on all ranks."""
    operation: str


class Channel(Protocol):
    """Moves bytes between processes. Several threads may call it."""

    given_up: str | None
    """Reason why this process gave up."""

    def move(
        self, receives: Messages, sends: Messages, of: Exchange, seconds: float
    ) -> None:
        """Blocks until all messages have been moved. Messages match by peer, size and
        salt."""

    def reason_of(self, peer: int) -> str | None:
        """Returns why that rank gave up, if it did."""

    def give_up(self, reason: str) -> None:
        """Ends every move() of this process. Does not block."""


class Transport(Protocol):
    """Moves bytes for _core.over(). Only one thread at a time calls it."""

    name: str
    rank: int
    size: int

    def exchange(
        self,
        sends: list[tuple[int, memoryview]],
        receives: list[tuple[int, memoryview]],
        operation: str,
        sequence: int,
        seconds: float,
    ) -> None: ...
    def split(
        self, color: int, key: int, operation: str, sequence: int, seconds: float
    ) -> Transport | None: ...
    def give_up(self, reason: str) -> None: ...


class ChannelTransport:
    """A Transport over a channel, which it shares with the results of split()."""

    def __init__(self, name: str, channel: Channel, rank: int, size: int) -> None:
        self.name, self.rank, self.size = name, rank, size
        self._channel = channel
        self.names = list(range(size))
        """Numbers of the channel's ranks in errors."""
        self._members = list(range(size))
        self._space = 0
        self._process = os.getpid()

    def exchange(
        self,
        sends: Messages,
        receives: Messages,
        operation: str,
        sequence: int,
        seconds: float,
    ) -> None:
        """Exchanges messages point to point. Collective for ranks with messages for
        each other.

        Raises CommFailure "timed out waiting for rank 1", "rank 1 gave up: ...", "rank
        1 has left or died: ..." or "this rank gave up: ...". The transport cannot be
        used afterwards.
        """
        if os.getpid() != self._process:
            raise FailedPrecondition(
                f"this transport belongs to process {self._process}, which has forked: "
                "make another one here"
            )
        if self._channel.given_up is not None:
            raise CommFailure(f"this rank gave up: {self._channel.given_up}")
        # Ranks in different calls must time out instead of receiving each other's
        # messages.
        salt = self._space ^ sequence * 2654435761 ^ zlib.crc32(operation.encode())
        try:
            of = Exchange(salt, f"{self._space} {sequence}", operation)
            self._channel.move(self._at(receives), self._at(sends), of, seconds)
        except Broken as broken:
            text = self._describe(broken)
            self.give_up(f"{names_of_calls() or operation}: {text}")
        else:
            return
        raise CommFailure(text)

    def split(
        self, color: int, key: int, operation: str, sequence: int, seconds: float
    ) -> Self | None:
        """Returns the transport of the ranks that pass the same `color`, ordered by
        `key`, then by rank. Returns None for a color below 0. Collective. If a part
        fails, the whole group fails.
        """
        size = struct.calcsize("<qq")
        said = [bytearray(struct.pack("<qq", color, key)) for _ in range(self.size)]
        heard = [bytearray(size) for _ in range(self.size)]
        peers = [peer for peer in range(self.size) if peer != self.rank]
        self.exchange(
            [(peer, memoryview(said[peer])) for peer in peers],
            [(peer, memoryview(heard[peer])) for peer in peers],
            operation,
            sequence,
            seconds,
        )
        if color < 0:
            return None
        heard[self.rank] = said[self.rank]
        all_said = [struct.unpack("<qq", text) for text in heard]
        ranks = sorted(
            (its_key, rank)
            for rank, (its, its_key) in enumerate(all_said)
            if its == color
        )
        part = copy.copy(self)
        part.size, part.rank = len(ranks), ranks.index((key, self.rank))
        part._members = [self._members[rank] for _, rank in ranks]
        part._space = zlib.crc32(struct.pack("<QQ", self._space, sequence))
        return part

    def give_up(self, reason: str) -> None:
        """Notifies all ranks that this rank cannot continue. Does not block. Any thread
        may call it.
        """
        if self._channel.given_up is None and os.getpid() == self._process:
            self._channel.given_up = reason
            self._channel.give_up(reason)

    def _at(self, messages: Messages) -> Messages:
        return [(self._members[peer], memory) for peer, memory in messages]

    def _describe(self, broken: Broken) -> str:
        if self._channel.given_up is not None:
            return f"this rank gave up: {self._channel.given_up}"
        if broken.text:
            return broken.text
        # These numbers refer to the process group, of which this group may be a part.
        peers = sorted(broken.peers)
        for peer in peers:
            reason = self._channel.reason_of(peer)
            if reason is not None:
                return f"rank {self.names[peer]} gave up: {reason}"
        names = ", ".join(str(self.names[peer]) for peer in peers)
        if broken.cause is None:
            return f"timed out waiting for rank{'s' if len(peers) > 1 else ''} {names}"
        return f"rank {names} has left or died: {broken.cause}"

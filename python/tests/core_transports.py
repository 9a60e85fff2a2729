# SPDX-License-Identifier: Apache-2.0
"""Transports in plain Python between threads, for tests of the native module."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field

Messages = list[tuple[int, memoryview]]


class Mailboxes:
    """Queues between ranks that are threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.boxes: dict[tuple[int, int], queue.Queue[bytes]] = {
            (source, target): queue.Queue()
            for source in range(size)
            for target in range(size)
        }


@dataclass
class ThreadTransport:
    """thinwire.comm.transport.Transport over queues."""

    boxes: Mailboxes
    rank: int
    name: str = "threads"
    reasons: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.boxes.size

    def exchange(
        self,
        sends: Messages,
        receives: Messages,
        operation: str,
        sequence: int,
        seconds: float,
    ) -> None:
        for peer, view in sends:
            self.boxes.boxes[self.rank, peer].put(bytes(view))
        for peer, view in receives:
            try:
                view[:] = self.boxes.boxes[peer, self.rank].get(timeout=seconds)
            except queue.Empty:
                raise TimeoutError(f"nothing from rank {peer}") from None

    def split(self, *_: object) -> None:
        return None

    def give_up(self, reason: str) -> None:
        self.reasons.append(reason)


class StuckTransport:
    """A transport of two ranks, of which the other one never answers."""

    name, rank, size = "stuck", 0, 2

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()
        self.views: list[memoryview] = []

    def exchange(self, sends: Messages, receives: Messages, *_: object) -> None:
        self.views += [view for _, view in sends + receives]
        self.entered.set()
        self.released.wait(30)
        raise RuntimeError("released")

    def split(self, *_: object) -> None:
        return None

    def give_up(self, reason: str) -> None:
        self.released.set()

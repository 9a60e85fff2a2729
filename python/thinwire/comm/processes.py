# SPDX-License-Identifier: Apache-2.0
"""Notices at once when the process of another rank on this machine ends."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .. import _core
from ..errors import Unavailable


class Processes:
    """Processes of other ranks, if they can be watched: on the same machine, in the
    same namespace.
    """

    def __init__(
        self, comm: _core.Communicator, ranks: Sequence[int], own: int
    ) -> None:
        """Collective over `comm`. `ranks` contains the numbers of its ranks in errors,
        and `own` is the number of this rank.

        Raises Unavailable if a process has ended meanwhile.
        """
        texts = comm.gather_texts(f"{_space()} {os.getpid()}")
        self._opened: list[tuple[int, int]] = []
        for rank, text in zip(ranks, texts, strict=True):
            its_space, process = text.rsplit(" ", 1)
            if rank == own or its_space != _space() or not hasattr(os, "pidfd_open"):
                continue
            try:
                self._opened.append((rank, os.pidfd_open(int(process))))
            except OSError as error:
                raise Unavailable(f"rank {rank} cannot be watched: {error}") from None

    def ended(self, seconds: float = 0.0) -> int | None:
        """Returns a rank whose process has ended, or ends within `seconds`."""
        poll = select.poll()
        names = {}
        for rank, descriptor in self._opened:
            poll.register(descriptor, select.POLLIN)
            names[descriptor] = rank
        for descriptor, _ in poll.poll(1000 * seconds):
            return names[descriptor]
        return None

    def close(self) -> None:
        for _, descriptor in self._opened:
            os.close(descriptor)
        self._opened = []


def _space() -> str:
    """Returns a text that identifies the namespace of process numbers."""
    found = ""
    with suppress(OSError):
        found = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        found += os.readlink("/proc/self/ns/pid")
    return found

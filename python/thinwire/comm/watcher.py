# SPDX-License-Identifier: Apache-2.0
"""Threads that query stores and interrupt waits for lost ranks."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from .lifetime import end_at_exit, is_ending

T = TypeVar("T")
LOOK_SECONDS = 0.25
"""Time between two checks for a rank that has given up."""
_BRIEF_SECONDS = 1.0
"""Longest time to wait for the store after a rank has failed. The store's host may have
died with the rank.
"""


class Watched(Protocol):
    """An object whose look() a thread calls until the object is destroyed."""

    def look(self) -> bool:
        """Returns whether to look again."""


class Watcher:
    """A daemon that calls look() until the object is destroyed, to interrupt waits for
    lost ranks. The daemon also makes calls that may block. It is started in advance,
    because no thread can start while the interpreter ends.
    """

    def __init__(self, watched: weakref.ref[Watched]) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._began: float | None = None
        """Time at which the present call began."""
        thread = threading.Thread(target=self._run, args=(watched,), daemon=True)
        end_at_exit(thread, partial(self._jobs.put, None))
        thread.start()

    def briefly(self, action: Callable[[], T]) -> T | None:
        """Returns action(), or None if it raises or does not return in time."""
        results: list[T] = []
        done = threading.Event()

        def run() -> None:
            with suppress(Exception):  # for example, the store's host is gone
                results.append(action())
            done.set()

        self._jobs.put(run)
        began = self._began
        spent = 0.0 if began is None else time.monotonic() - began
        done.wait(max(0.0, _BRIEF_SECONDS - spent))
        return results[0] if results else None

    def _run(self, watched: weakref.ref[Watched]) -> None:
        looks_on = True
        while True:
            job = None
            with suppress(queue.Empty):
                job = self._jobs.get(timeout=LOOK_SECONDS)
            found = watched()
            if is_ending.is_set() or (job is None and found is None):
                return
            self._began = time.monotonic()
            if job is not None:
                job()
            elif looks_on and found is not None:
                with suppress(Exception):  # the thread must survive for briefly()
                    looks_on = found.look()
            self._began = None
            del found, job

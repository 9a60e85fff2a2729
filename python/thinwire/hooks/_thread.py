# SPDX-License-Identifier: Apache-2.0
"""The thread of a hook, which runs all exchanges of the hook in order."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ..comm.calls import in_call, name_of_call
from ..comm.lifetime import end_at_exit
from ..errors import FailedPrecondition

T = TypeVar("T")
_Jobs = queue.SimpleQueue[Callable[[], None] | None]


class Exchanges:
    """A queue of calls that a daemon runs, so that the program's end does not wait for
    lost ranks."""

    def __init__(self, *natives: Any) -> None:
        self._jobs: _Jobs = queue.SimpleQueue()
        self._process = os.getpid()
        self._closing = threading.Lock()  # no job is queued behind the end
        self._is_closed = False
        self._natives = natives
        thread = threading.Thread(
            target=_run, args=(self._jobs,), name="thinwire.hook", daemon=True
        )
        end_at_exit(thread, partial(self._jobs.put, None))
        thread.start()

    def put(self, job: Callable[[], None]) -> None:
        """Queues a job. Raises FailedPrecondition after close() and in a forked
        child."""
        with self._closing:
            self.require_open()
            self._jobs.put(job)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def require_open(self) -> None:
        """Raises like put()."""
        if self._is_closed or os.getpid() != self._process:
            raise FailedPrecondition(
                "this hook of DistributedDataParallel is closed"
                if self._is_closed
                else f"this hook belongs to process {self._process}, which has forked"
            )

    def call(self, body: Callable[[], T]) -> T:
        """Returns body() after all jobs, or raises its exception."""
        name = name_of_call()
        results: list[T] = []
        failures: list[BaseException] = []
        done = threading.Event()

        def job() -> None:
            try:
                with in_call(name):
                    results.append(body())
            except BaseException as failure:  # noqa: BLE001  the caller raises it
                failures.append(failure)
            done.set()

        self.put(job)
        done.wait()
        if failures:
            raise failures[0]
        return results[0]

    def close(self) -> None:
        with self._closing:
            self._is_closed = True
            self._jobs.put(None)
        for native in self._natives:
            native.close()


def _run(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it may hold the last reference to the hook

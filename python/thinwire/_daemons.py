# SPDX-License-Identifier: Apache-2.0
"""Daemon threads that take steps: the interpreter ends without waiting for them.

One that comes back from native code when the interpreter has ended would end the process by a
signal. So at exit its exchange is ended, its next step() raises, and it is waited for.
"""

from __future__ import annotations

import threading
import time
import weakref

_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_EXIT_SECONDS = 5.0


def note_thread() -> None:
    """Local: this thread takes steps."""
    thread = threading.current_thread()
    if thread.daemon:
        _threads.add(thread)


def are_alive() -> bool:
    return any(thread.is_alive() for thread in _threads)


def wait() -> None:
    """Blocks until all of them have ended, for some seconds at most."""
    end = time.monotonic() + _EXIT_SECONDS
    for thread in list(_threads):
        thread.join(max(0.0, end - time.monotonic()))

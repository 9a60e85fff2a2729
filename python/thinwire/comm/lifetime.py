# SPDX-License-Identifier: Apache-2.0
"""Closes communicators when the interpreter ends, and protects groups in forked
children."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .. import _core

_open: weakref.WeakSet[_core.Communicator] = weakref.WeakSet()
_groups: weakref.WeakSet[Any] = weakref.WeakSet()
_ends: list[Callable[[], None]] = []
_SECONDS_FOR_GLOO = 0.05
is_ending = threading.Event()
"""Set when the program ends, after all communicators are closed."""
T = TypeVar("T")


def call_after_close(end: Callable[[], None]) -> None:
    """Calls end() when the program ends, after all communicators are closed."""
    _ends.append(end)


def close_at_exit(communicator: _core.Communicator) -> _core.Communicator:
    """Returns `communicator`, which the end of the program closes if it is still open."""
    _open.add(communicator)
    return communicator


def reason_of(failure: BaseException) -> str:
    """Returns the text with which a rank gives up because of this failure: "ValueError:
    ...". Surrogates are escaped, because texts are sent as UTF-8.
    """
    text = str(failure).encode(errors="backslashreplace").decode()
    return type(failure).__name__ + (f": {text}" if text else "")


def reason_of_end() -> str | None:
    """Returns the text of the exception that has ended the program, or None."""
    failure: BaseException | None = getattr(sys, "last_value", None)
    # In an interactive session an error does not end the program.
    if failure is None or hasattr(sys, "ps1"):
        return None
    return reason_of(failure)


def _close_all() -> None:
    reason = reason_of_end()
    if daemons_are_alive():
        reason = reason or "the program ended while a daemon thread took steps"
    for communicator in list(_open):
        if reason is not None and not communicator.closed:
            communicator.give_up(reason)
        communicator.close()
    _end_helpers()
    # gloo's threads may still take the GIL to release tensors of the last collective.
    # torch 2.13 aborts or hangs if a thread takes the GIL while the interpreter ends.
    time.sleep(_SECONDS_FOR_GLOO)
    for end in reversed(_ends):
        end()


def keep_in_children(group: T) -> T:
    """Returns `group`, and prevents forked children, which lack its threads, from
    ending it.
    """
    _groups.add(group)
    return group


def _leave_to_the_parent() -> None:
    _open.clear()
    _ends.clear()
    _helpers.clear()
    for group in _groups:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


# atexit runs in reverse order, so this precedes the native module's notice of the end.
atexit.register(_close_all)
os.register_at_fork(after_in_child=_leave_to_the_parent)


# If a daemon returned from native code after the interpreter has ended, a signal would
# end the process. Exit therefore waits first for daemons that take steps and then,
# after communicators are closed, for the package's own daemons.
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_helpers: weakref.WeakKeyDictionary[threading.Thread, Callable[[], None]] = (
    weakref.WeakKeyDictionary()
)
_remedies: list[Callable[[], None]] = []
_EXIT_SECONDS = 5.0
_HELPER_SECONDS = 0.4
_SECONDS_AFTER_REMEDY = 1.0


def note_daemon() -> None:
    """Records that this thread takes steps. Local."""
    thread = threading.current_thread()
    if thread.daemon:
        _threads.add(thread)


def daemons_are_alive() -> bool:
    return any(thread.is_alive() for thread in _threads)


def wait_for_daemons() -> None:
    """Blocks until all daemons that take steps have ended, but at most for some
    seconds.
    """
    _have_ended(_threads, _EXIT_SECONDS)


def end_at_exit(thread: threading.Thread, wake: Callable[[], None]) -> None:
    """Makes exit wait until this daemon has ended. The daemon must end when wake() is
    called after `is_ending` is set.
    """
    _helpers[thread] = wake


def call_if_helpers_hang(remedy: Callable[[], None]) -> Callable[[], None]:
    """Returns `remedy`, which is called at exit if a daemon does not end."""
    _remedies.append(remedy)
    return remedy


def _end_helpers() -> None:
    is_ending.set()
    for wake in list(_helpers.values()):
        wake()
    helpers = [*_helpers, *_threads]
    if not _have_ended(helpers, _HELPER_SECONDS):
        for remedy in _remedies:
            remedy()
        _have_ended(helpers, _SECONDS_AFTER_REMEDY)


def _have_ended(threads: Iterable[threading.Thread], seconds: float) -> bool:
    end = time.monotonic() + seconds
    for thread in list(threads):
        thread.join(max(0.0, end - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)

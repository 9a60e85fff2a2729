# SPDX-License-Identifier: Apache-2.0
"""Names of the program's current collective calls, for errors about ranks in different
calls.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_calls: dict[int, str] = {}
"""The outermost call of each thread."""


@contextmanager
def in_call(name: str) -> Iterator[None]:
    """Names the collective call in its body, for example "save()". Also usable as a
    decorator. If calls are nested, the outermost name counts. Local.
    """
    thread = threading.get_ident()
    is_outermost = thread not in _calls
    if is_outermost:
        _calls[thread] = name
    try:
        yield
    finally:
        if is_outermost:
            _calls.pop(thread, None)


@contextmanager
def in_part(of_call: str) -> Iterator[None]:
    """Extends the name of this thread's call, if any, in its body. Local."""
    thread = threading.get_ident()
    name = _calls.get(thread)
    if name is not None:
        _calls[thread] = f"{name} {of_call}"
    try:
        yield
    finally:
        if name is not None:
            _calls[thread] = name


def name_of_call() -> str:
    """Returns the call that this thread is in, or ""."""
    return _calls.get(threading.get_ident(), "")


def names_of_calls() -> str:
    """Returns the calls that all threads are in, or "". All threads count, because
    another thread moves the bytes of a call.
    """
    return " and ".join(sorted(set(filter(None, _calls.values()))))


def different(calls: dict[int, str]) -> str:
    """Returns the text of an error for two ranks that are in different calls."""
    where = " and ".join(
        f"rank {r} is in {calls[r] or 'another call'}" for r in sorted(calls)
    )
    return f"{where}; all ranks must make the same collective calls in the same order"

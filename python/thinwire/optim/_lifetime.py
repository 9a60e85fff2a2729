# SPDX-License-Identifier: Apache-2.0
"""Closing of native objects, with their owner or at exit, but not in a forked child."""

from __future__ import annotations

import atexit
import itertools
import os
import weakref
from typing import Any

from .. import _log
from ..comm.lifetime import wait_for_daemons

_numbers = itertools.count()
_open: dict[int, tuple[int, Any]] = {}
# Objects that a forked child must not close, because they wait for threads that exist
# only in the parent.
_of_the_parent: list[Any] = []


def closing(owner: object, user: Any, *owned: Any) -> weakref.finalize[..., Any]:
    """Returns a function that closes `user` and then the communicators `owned`, only
    once. The function also runs when `owner` is destroyed. At exit of the interpreter
    only `user` is closed, because communicators report the reason to other ranks when
    they end.
    """
    number = next(_numbers)
    _open[number] = os.getpid(), user
    finalizer = weakref.finalize(owner, _close, os.getpid(), number, (user, *owned))
    finalizer.atexit = False
    return finalizer


def close_user(closer: weakref.finalize[..., Any]) -> None:
    parts = closer.detach()
    if parts is not None:
        _, number, natives = parts[2]
        del _open[number]
        _end(natives[0])


def _close(process: int, number: int, natives: tuple[Any, ...]) -> None:
    _open.pop(number, None)
    if os.getpid() != process:
        _of_the_parent.extend(natives)
        return
    for native in natives:
        _end(native)


def _end(native: Any) -> None:
    """Closes the object, and passes on its log lines, because an exchange may have
    failed.
    """
    native.close()
    _log.forward()


@atexit.register
def _close_all() -> None:
    for process, user in list(_open.values()):
        if process == os.getpid():
            _end(user)
    wait_for_daemons()

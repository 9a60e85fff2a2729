# SPDX-License-Identifier: Apache-2.0
"""Communicators that are still open when the interpreter ends."""

from __future__ import annotations

import atexit
import os
import sys
import weakref

from .. import _core

_open: weakref.WeakSet[_core.Communicator] = weakref.WeakSet()


def close_at_exit(communicator: _core.Communicator) -> _core.Communicator:
    """`communicator`, which the end of the program closes if nobody else has."""
    _open.add(communicator)
    return communicator


def reason_of(failure: BaseException) -> str:
    """What a rank says that gives up because of this: "ValueError: ..."."""
    text = str(failure)
    return type(failure).__name__ + (f": {text}" if text else "")


def _close_all() -> None:
    failure: BaseException | None = getattr(sys, "last_value", None)
    # In a dialogue an error has not ended anything.
    if hasattr(sys, "ps1"):
        failure = None
    for communicator in list(_open):
        if failure is not None and not communicator.closed:
            communicator.give_up(reason_of(failure))
        communicator.close()


# Runs before the native module notices that Python ends: atexit goes backwards.
atexit.register(_close_all)
os.register_at_fork(after_in_child=_open.clear)

# SPDX-License-Identifier: Apache-2.0
"""Log of the C++ library and of this package. In a program that has not set up logging,
only lines that a configuration requests are printed.
"""

from __future__ import annotations

import logging
import sys
import warnings

from . import _core

logger = logging.getLogger("thinwire")

# Packages whose code lies between a user's line and a warning.
_BETWEEN = {"thinwire", "torch", "accelerate", "lightning", "transformers"}
_BETWEEN |= {"contextlib", "functools"}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


def warn(text: str) -> None:
    """Warns, and names the line that called this package or torch."""
    level, frame = 1, sys._getframe()
    while (
        frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN
        and frame.f_back is not None
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


_ASKED = ("time per step, ", "memory of this rank ")
"""Prefixes of the library's lines that a configuration requests."""


def tell(text: str) -> None:
    """Logs a line that the configuration requests. If the log has no handlers and would
    drop the line, prints the line to stderr.
    """
    if logger.hasHandlers():
        logger.info("%s", text)
    else:
        print(text, file=sys.stderr, flush=True)


def forward(comm: _core.Communicator | None = None) -> None:
    """Passes on the lines that the library has logged: all lines on rank 0, and
    warnings on other ranks. Without `comm`, for example at exit, passes on all lines.

    Ranks that are threads share their lines, so each of them passes on all lines.
    """
    everything = comm is None or comm.rank == 0 or comm.backend == "local"
    for level, text in _core.take_log():
        number = _LEVELS[level]
        if everything and text.startswith(_ASKED):
            tell(text)
        elif everything or number >= logging.WARNING:
            logger.log(number, "%s", text)

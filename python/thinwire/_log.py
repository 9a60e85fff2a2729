# SPDX-License-Identifier: Apache-2.0
"""Lines worth a log: the library's, and this package's. Nothing is ever printed."""

from __future__ import annotations

import logging

from . import _core

logger = logging.getLogger("thinwire")

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


def forward(comm: _core.Communicator) -> None:
    """Passes on what the library has logged: on rank 0 all of it, elsewhere warnings.

    Ranks that are threads share their lines, so each passes on all that it finds.
    """
    everything = comm.rank == 0 or comm.backend == "local"
    for level, text in _core.take_log():
        number = _LEVELS[level]
        if everything or number >= logging.WARNING:
            logger.log(number, "%s", text)

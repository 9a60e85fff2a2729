# SPDX-License-Identifier: Apache-2.0
"""Lines worth a log: the library's, and this package's. Nothing is ever printed."""

from __future__ import annotations

import logging

from . import _core

logger = logging.getLogger("thinwire")

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


def forward(comm: _core.Communicator) -> None:
    """Logs the library's lines; other ranks than 0 pass on warnings only."""
    everything = comm.rank == 0 or comm.backend == "local"
    for level, text in _core.take_log():
        number = _LEVELS[level]
        if everything or number >= logging.WARNING:
            logger.log(number, "%s", text)

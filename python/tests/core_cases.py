# SPDX-License-Identifier: Apache-2.0
"""A small layout and an engine for the tests of the native module."""

from __future__ import annotations

import torch
from thinwire import _core
from thinwire.optim._options import DTYPES


def layout() -> _core.Layout:
    return _core.Layout(
        [("w", (33, 7), 0), ("empty", (0, 3), 0), ("b", (1025,), 1), ("s", (), 0)]
    )


def config(dtype: torch.dtype = torch.float32, zero_stage: int = 0) -> _core.Config:
    made = _core.Config()
    made.precision.dtype = DTYPES[dtype]
    made.zero.stage = zero_stage
    return made


def scratch() -> _core.SaveOptions:
    options = _core.SaveOptions()
    options.durable = False
    return options


class Trained:
    """One rank's engine and its memory."""

    def __init__(self, comm: _core.Communicator, chosen: _core.Config) -> None:
        self.params, self.grads = (torch.ones(layout().size) for _ in range(2))
        self.engine = _core.Engine(comm, layout(), chosen, self.params, self.grads)

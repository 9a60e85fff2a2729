# SPDX-License-Identifier: Apache-2.0
"""A small layout, options and training for the tests of the native module."""

from __future__ import annotations

import torch
from thinwire import _core
from thinwire.engine._memory import TYPES
from thinwire.optim._options import DTYPES, Options


def layout() -> _core.Layout:
    return _core.Layout(
        [("w", (33, 7), 0), ("empty", (0, 3), 0), ("b", (1025,), 1), ("s", (), 0)]
    )


def config(
    options: Options | None = None,
    dtype: torch.dtype = torch.float32,
    zero_stage: int = 0,
) -> _core.Config:
    made = _core.Config()
    made.precision.dtype = DTYPES[dtype]
    made.zero.stage = zero_stage
    if options is not None:
        made.optimizer = options
    return made


def all_options() -> dict[str, Options]:
    """Options of each optimizer; low-bit ones compress from the third step on."""
    onebit_adam = _core.OnebitAdamOptions()
    onebit_adam.freeze_step = 2
    onebit_lamb = _core.OnebitLambOptions()
    onebit_lamb.freeze_step = 2
    zero_one_adam = _core.ZeroOneAdamOptions()
    zero_one_adam.var_freeze_step = 3
    zero_one_adam.local_step_scaler = 2
    return {
        "adam": _core.AdamOptions(),
        "lamb": _core.LambOptions(),
        "onebit_adam": onebit_adam,
        "onebit_lamb": onebit_lamb,
        "zero_one_adam": zero_one_adam,
    }


class Run:
    """One rank's parameters, optimizer and gradients of its own."""

    def __init__(self, comm: _core.Communicator, chosen: _core.Config) -> None:
        dtype = TYPES[chosen.precision.dtype]
        self.layout = layout()
        common = torch.Generator().manual_seed(7)
        self.params = torch.randn(self.layout.size, generator=common).to(dtype)
        self.optimizer = _core.Optimizer(comm, self.layout, chosen, self.params)
        self._own = torch.Generator().manual_seed(comm.rank)

    def step(self) -> _core.StepReport:
        grads = torch.randn(self.layout.size, generator=self._own).to(self.params.dtype)
        return self.optimizer.step(self.params, grads)

    def train(self, steps: int) -> torch.Tensor:
        for _ in range(steps):
            assert self.step().applied
        return self.params


def scratch() -> _core.SaveOptions:
    options = _core.SaveOptions()
    options.durable = False
    return options


class Trained:
    """One rank's engine and its memory."""

    def __init__(
        self, comm: _core.Communicator, chosen: _core.Config, seed: int = 3
    ) -> None:
        dtype = TYPES[chosen.precision.dtype]
        self.layout, self.rank = layout(), comm.rank
        generator = torch.Generator().manual_seed(seed + comm.rank)
        self.params = torch.randn(self.layout.size, generator=generator).to(dtype)
        keeps = _core.keeps_gradients(chosen, comm.size)
        self.grads = torch.zeros(self.layout.size, dtype=dtype) if keeps else None
        self.engine = _core.Engine(comm, self.layout, chosen, self.params, self.grads)

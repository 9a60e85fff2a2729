# SPDX-License-Identifier: Apache-2.0
"""1-bit Adam and an engine of the native module on flat arrays, for tests of the module and of
what is below it."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from thinwire import _core
from thinwire.optim._options import DTYPES

SHAPES = [("w1", [33, 7]), ("b", [1]), ("none", [0]), ("w2", [65, 17]), ("row", [1025])]


def digest(array: Any) -> str:
    """Returns a digest of the bytes of a tensor or a native array."""
    tensor = torch.from_dlpack(array) if hasattr(array, "__dlpack__") else array
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


class Training:
    """Parameters, an optimizer that is exact for 4 steps, and gradients that differ by rank."""

    def __init__(self, group: _core.Communicator, shapes: Any = SHAPES) -> None:
        layout = _core.Layout([(name, shape, 0) for name, shape in shapes])
        config = _core.Config()
        config.set_optimizer("OnebitAdam", '{"freeze_step": 4, "weight_decay": 0.01}')
        config.gradient_clipping = 1.0
        self.params = torch.randn(
            layout.size, generator=torch.Generator().manual_seed(1)
        )
        self._gradients = torch.Generator().manual_seed(100 + group.rank)
        self.bytes_sent: list[int] = []
        self.phase = ""
        self.optimizer = _core.Optimizer(group, layout, config, self.params)

    def steps(self, count: int) -> Training:
        for _ in range(count):
            grads = torch.randn(self.params.numel(), generator=self._gradients)
            report = self.optimizer.step(self.params, grads)
            self.phase = report.phase
            self.bytes_sent.append(report.bytes_sent)
        return self

    def digests(self) -> dict[str, Any]:
        """Digests of parameters and state by name, and the bytes of every step."""
        state = self.optimizer.state_dict()
        arrays = {
            name: digest(value)
            for name, value in state.items()
            if hasattr(value, "__dlpack__")
        }
        assert {"worker_error", "server_error"} <= arrays.keys()
        return arrays | {"params": digest(self.params), "bytes": self.bytes_sent}


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

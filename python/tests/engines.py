# SPDX-License-Identifier: Apache-2.0
"""Small models and runs for the tests of Engine."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import thinwire
import torch
from thinwire import _core

MICRO = 4


class Net(torch.nn.Module):
    """Parameters of awkward sizes, one without gradient on odd ranks, tied and frozen
    ones, and buffers."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with thinwire.seeded(seed):  # ranks are threads, and share the generator
            self._make()

    def _make(self) -> None:
        self.first = torch.nn.Linear(7, 33)
        self.norm = torch.nn.BatchNorm1d(33)
        self.second = torch.nn.Linear(33, 33)
        self.third = torch.nn.Linear(33, 33)
        self.third.weight = self.second.weight  # tied
        self.last = torch.nn.Linear(33, 1)
        self.sometimes = torch.nn.Parameter(torch.randn(1025) * 0.1)
        self.frozen = torch.nn.Parameter(torch.randn(5), requires_grad=False)

    def forward(self, x: torch.Tensor, uses_all: bool = True) -> torch.Tensor:
        h = torch.tanh(self.norm(self.first(x)))
        h = torch.tanh(self.third(torch.tanh(self.second(h))))
        y = self.last(h).float().squeeze(-1) + self.frozen.float().sum()
        return y + self.sometimes.float().mean() if uses_all else y


class Breaks(torch.autograd.Function):
    """Fails in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        raise ValueError("breaks")


def batch(
    rank: int, step: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    """Inputs and targets of one micro-batch; a rank's own."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(MICRO, 7, generator=generator)
    return x.to(dtype), x.sum(1)


def loss_of(model: Any, rank: int, step: int) -> torch.Tensor:
    """Mean squared error; odd ranks leave a parameter out in every third step."""
    x, y = batch(rank, step, dtype_of(model))
    uses_all = rank % 2 == 0 or step % 3 != 0
    return torch.nn.functional.mse_loss(model(x, uses_all), y)


def config_of(**changes: Any) -> dict[str, Any]:
    """A configuration as DeepSpeed's, with `changes` at the top."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": MICRO,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
        "gradient_clipping": 1.0,
    }
    return copy.deepcopy(config | changes)


def optimizer_of(kind: str, **params: Any) -> dict[str, Any]:
    """The section of a configuration."""
    return {"optimizer": {"type": kind, "params": {"lr": 0.01} | params}}


ONEBIT = optimizer_of("OneBitAdam", freeze_step=3)
# It ends in local steps.
ZERO_ONE = optimizer_of(
    "ZeroOneAdam",
    var_freeze_step=2,
    var_update_scaler=1,
    local_step_scaler=2,
    local_step_clipper=4,
)
FP16 = {"fp16": {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 4}}
BF16 = {"bf16": {"enabled": True}}
PRECISIONS: dict[str, dict[str, Any]] = {"fp32": {}, "bf16": BF16, "fp16": FP16}
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def zero(stage: int, offload: bool = False) -> dict[str, Any]:
    """The section of a configuration."""
    section: dict[str, Any] = {"stage": stage, "reduce_bucket_size": 500}
    if offload:
        section["offload_optimizer"] = {"device": "cpu"}
    return {"zero_optimization": section}


DEEPSPEED = {"thinwire": {"semantics": "deepspeed"}, "gradient_clipping": 0.0}
RUNS: dict[str, dict[str, Any]] = {
    "adam": {},
    "onebit_adam": ONEBIT,
    "onebit_adam_fp16": ONEBIT | FP16,
    "onebit_adam_deepspeed": ONEBIT | FP16 | DEEPSPEED,
    "onebit_lamb_bf16": optimizer_of("OneBitLamb", freeze_step=3) | BF16,
    "zero_one_adam": ZERO_ONE,
    "zero_1_fp16": zero(1) | FP16,
    "zero_1_deepspeed": zero(1) | FP16 | DEEPSPEED,
    "zero_2": zero(2),
    "zero_2_bf16": zero(2) | BF16,
}


def make(comm: Any, config: Any, **arguments: Any) -> thinwire.Engine:
    """Ranks start from parameters of their own: rank 0's count."""
    if "model" not in arguments:
        arguments["model"] = Net(seed=comm.rank)
    engine, *_ = thinwire.initialize(config=config, process_group=comm, **arguments)
    return engine


def alone(config: Any, **arguments: Any) -> thinwire.Engine:
    """An engine of one rank, without a process group."""
    return make(_core.local_group(1)[0], copy.deepcopy(config), **arguments)


def dtype_of(model: Any) -> torch.dtype:
    dtype: torch.dtype = next(model.parameters()).dtype
    return dtype


def train(engine: thinwire.Engine, steps: range) -> thinwire.Engine:
    """Whole windows of accumulation. Returns the engine."""
    for step in steps:
        for micro in range(engine.gradient_accumulation_steps()):
            number = step * 10 + micro
            engine.backward(loss_of(engine, engine.global_rank, number))
            engine.step()
    return engine


def trained(comm: Any, steps: int, **changes: Any) -> thinwire.Engine:
    """An engine of config_of(**changes) after so many steps."""
    return train(make(comm, config_of(**changes)), range(steps))


def by_optimizer(comm: Any, made: Callable[[Net], Any], steps: int) -> torch.Tensor:
    """The parameters after train() with an optimizer in a plain loop."""
    model = Net(seed=comm.rank)
    optimizer = made(model)
    send_others(model, comm)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, comm.rank, step * 10).backward()
        optimizer.step()
    optimizer.close()
    return flat(model)


def flat(model: torch.nn.Module) -> torch.Tensor:
    """All parameters, as they are, in one array."""
    return torch.cat([p.detach().reshape(-1).float() for p in model.parameters()])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """NaN equals itself, and -0 is not 0."""
    return a.shape == b.shape and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )


@torch.no_grad()
def send_others(model: Net, comm: Any) -> None:
    """Buffers and frozen parameters, which optimizers know nothing of."""
    for tensor in [*model.buffers(), model.frozen]:
        values = tensor.detach().to("cpu", torch.float64).reshape(-1)
        comm.broadcast(values, 0)
        tensor.copy_(values.view(tensor.shape))

# SPDX-License-Identifier: Apache-2.0
"""Runs with semantics="deepspeed": checkpoints go on, load_state_dict() forgets."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import thinwire
import torch
from engines import FP16, flat, loss_of, make, same_bits, train
from optim_cases import loss_of as small_loss
from optim_cases import make as make_optimizer
from optim_cases import model as small_model
from thinwire.comm import run_local_ranks

KINDS = ("OnebitAdam", "OnebitLamb", "ZeroOneAdam")
STEPS = 14


def steps_of(net: Any, optimizer: Any, steps: range, comm: Any) -> None:
    for step in steps:
        optimizer.zero_grad()
        small_loss(net, comm.rank, step).backward()
        optimizer.step()


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_optimizer_goes_on_with_the_same_bits(
    kind: str, world: int, tmp_path: Path
) -> None:
    def run(comm: Any) -> None:
        def made() -> tuple[Any, Any]:
            net = small_model()
            return net, make_optimizer(
                kind, net.parameters(), comm, semantics="deepspeed"
            )

        net, optimizer = made()
        kept: dict[int, torch.Tensor] = {}
        for step in range(STEPS):
            steps_of(net, optimizer, range(step, step + 1), comm)
            kept[step] = flat(net)
            thinwire.save(tmp_path / str(step), optimizer, durable=False)
        for step in (0, 2, 4, 7, 9, 11):
            other_net, other = made()
            thinwire.load(tmp_path / str(step), other)
            assert same_bits(flat(other_net), kept[step]), step
            steps_of(other_net, other, range(step + 1, STEPS), comm)
            assert same_bits(flat(other_net), flat(net)), step

    run_local_ranks(world, run)


@pytest.mark.parametrize("kind", KINDS)
def test_load_state_dict_forgets_as_deepspeed_does(kind: str) -> None:
    def run(comm: Any) -> None:
        net = small_model()
        optimizer = make_optimizer(kind, net.parameters(), comm, semantics="deepspeed")
        steps_of(net, optimizer, range(11), comm)
        saved = copy.deepcopy(optimizer.state_dict())
        again = small_model()
        again.load_state_dict(net.state_dict())
        other = make_optimizer(kind, again.parameters(), comm, semantics="deepspeed")
        other.load_state_dict(saved)
        for trained, of in ((net, optimizer), (again, other)):
            steps_of(trained, of, range(11, 15), comm)
        assert not same_bits(flat(again), flat(net))

    run_local_ranks(2, run)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(
    "params",
    [
        {"type": "OneBitAdam", "params": {"lr": 0.01, "freeze_step": 3}},
        {"type": "OneBitLamb", "params": {"lr": 0.01, "freeze_step": 3}},
        {
            "type": "ZeroOneAdam",
            "params": {
                "lr": 0.01,
                "var_freeze_step": 4,
                "var_update_scaler": 1,
                "local_step_scaler": 2,
            },
        },
    ],
    ids=lambda params: params["type"],
)
def test_a_saved_engine_goes_on_with_the_same_bits(
    params: Any, precision: str, tmp_path: Path
) -> None:
    dtype = torch.float16 if precision == "fp16" else torch.float32
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": params,
        "gradient_clipping": 0.0,
        "thinwire": {"semantics": "deepspeed"},
        **(FP16 if precision == "fp16" else {}),
    }

    def run(comm: Any) -> None:
        engine = make(comm, config)
        for step in range(9):
            engine.save_checkpoint(tmp_path, tag=f"{step}")
            train(engine, range(step, step + 1), dtype)
        for step in (1, 4, 6, 7):
            other = make(comm, config)
            other.load_checkpoint(tmp_path, tag=f"{step}")
            train(other, range(step, 9), dtype)
            assert same_bits(flat(other.module), flat(engine.module)), step
        engine.backward(loss_of(engine, comm.rank, 9, dtype))
        engine.step()

    run_local_ranks(2, run)

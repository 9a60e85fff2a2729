# SPDX-License-Identifier: Apache-2.0
"""The same bits and bytes, whatever carries them."""

from __future__ import annotations

import hashlib
from typing import Any

import native
import pytest
import ranks
import thinwire
import torch
from thinwire import comm


def train(group: Any) -> dict[str, Any]:
    training = native.Training(group).steps(12)
    assert training.phase == "compressed"
    result = training.digests()
    part = group.split(group.rank % 2, -group.rank)
    values = torch.full((5,), float(2**group.rank))
    part.all_reduce(values)
    result |= {"part": [part.rank, part.size, values.tolist()]}
    part.close()
    training.optimizer.close()
    return result


def train_over(name: str) -> dict[str, Any]:
    """A rank: over what THINWIRE_COMM names."""
    if name == "torch":
        comm.init_distributed("gloo")
    group = comm.communicator_for()
    assert group.backend == {"torch": "torch:gloo", "mpi4py": "mpi4py"}[name]
    result = train(group)
    group.close()
    return result


@pytest.mark.parametrize("world", [2, 3])
def test_gloo_and_mpi4py_equal_local(world: int) -> None:
    local = comm.run_local_ranks(world, train)
    assert len({result["params"] for result in local}) == 1
    assert len({result["worker_error"] for result in local}) == world
    for name, launcher in (("torch", "torchrun"), ("mpi4py", "mpirun")):
        ranks.require("mpi", name != "mpi4py" or ranks.has_mpi(), "no mpirun or mpi4py")
        got = ranks.succeed(
            ranks.call(
                world,
                __file__,
                "train_over",
                name,
                launcher=launcher,
                env={"THINWIRE_COMM": name},
            )
        )
        assert [rank.value for rank in got] == local, name


OPTIMIZERS: dict[str, tuple[str, dict[str, Any], torch.dtype]] = {
    "adamw": ("AdamW", {}, torch.float32),
    "lamb": ("Lamb", {}, torch.float32),
    "onebit_adam": ("OnebitAdam", {"freeze_step": 3}, torch.float32),
    "onebit_adam_bf16": ("OnebitAdam", {"freeze_step": 3}, torch.bfloat16),
    "onebit_lamb": ("OnebitLamb", {"freeze_step": 3}, torch.float32),
    "zero_one_adam": (
        "ZeroOneAdam",
        {"var_freeze_step": 3, "local_step_scaler": 2},
        torch.float32,
    ),
}
ENGINES: dict[str, dict[str, Any]] = {
    "zero1": {"zero_optimization": {"stage": 1}},
    "zero2_bf16": {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
}


def model_of(seed: int) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(33, 65), torch.nn.Linear(65, 3))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def digest_of(model: torch.nn.Module) -> str:
    values = [p.detach().float().flatten().tolist() for p in model.parameters()]
    return hashlib.sha256(repr(values).encode()).hexdigest()


def train_all_kinds(group: Any) -> dict[str, tuple[str, int]]:
    """A rank: the parameters that each optimizer ends with, and the bytes it has sent."""
    generator = torch.Generator().manual_seed(100 + group.rank)
    results = {}
    for name, (kind, options, dtype) in OPTIMIZERS.items():
        model = model_of(1).to(dtype)
        part, sent = group.split(0, group.rank), 0
        optimizer = getattr(thinwire, kind)(
            model.parameters(),
            lr=1e-2,
            max_grad_norm=1.0,
            process_group=part,
            **options,
        )
        for _ in range(9):
            x = torch.randn(4, 33, generator=generator).to(dtype)
            model(x).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            sent += optimizer.report.bytes_sent
        optimizer.close()
        results[name] = (digest_of(model), sent)
    for name, settings in ENGINES.items():
        part = group.split(0, group.rank)
        config = settings | {
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        }
        engine, *_ = thinwire.initialize(
            model=model_of(1), config=config, process_group=part
        )
        dtype = next(engine.module.parameters()).dtype
        for _ in range(5):
            x = torch.randn(4, 33, generator=generator).to(dtype)
            engine.backward(engine(x).float().square().mean())
            engine.step()
        results[name] = (digest_of(engine.module), engine.report.bytes_sent)
        engine.destroy()
    return results


def train_all_kinds_over_gloo() -> dict[str, tuple[str, int]]:
    comm.init_distributed("gloo")
    group = comm.communicator_for()
    results = train_all_kinds(group)
    group.close()
    return results


def test_every_optimizer_and_zero_have_the_bits_of_local_ranks_over_gloo() -> None:
    local = comm.run_local_ranks(2, train_all_kinds)
    # Between two exchanges of 0/1 Adam ranks differ.
    differing = {name for name in local[0] if local[0][name][0] != local[1][name][0]}
    assert differing == {"zero_one_adam"}
    got = ranks.succeed(ranks.call(2, __file__, "train_all_kinds_over_gloo"))
    assert [rank.value for rank in got] == [
        {name: list(value) for name, value in rank.items()} for rank in local
    ]


def split_thrice() -> list[Any]:
    """A rank: parts of parts, and a rank that is in none, while others exchange."""
    comm.init_distributed("gloo")
    group = comm.communicator_for()
    none = group.split(-1 if group.rank == 1 else 0)
    assert (none is None) == (group.rank == 1)
    pair = group.split(group.rank // 2)
    single = pair.split(group.rank)
    values = torch.tensor([group.rank])
    results: list[Any] = [single.size]
    for part in (group, pair, group, pair):
        sums = values.clone()
        part.all_reduce(sums)
        results.append(sums.item())
    return results


def test_parts_do_not_take_each_others_messages() -> None:
    got = [
        rank.value for rank in ranks.succeed(ranks.call(3, __file__, "split_thrice"))
    ]
    assert got == [[1, 3, 1, 3, 1], [1, 3, 1, 3, 1], [1, 3, 2, 3, 2]]

# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: groups of parameters that name the ranks which hold them."""

from __future__ import annotations

import runpy
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from local_ranks import by_ranks
from thinwire.comm import run_local_ranks

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/python/mixture_of_experts.py"
WORLD, STEPS = 4, 6
Values = dict[str, list[float]]


def example() -> Any:
    return SimpleNamespace(**runpy.run_path(str(EXAMPLE)))


def model_of(sharing: Any) -> torch.nn.Module:
    """Values that follow from the names, as experts are others on each rank."""
    moe = example()
    width = moe.WIDTH
    model = torch.nn.Sequential(
        torch.nn.Linear(width, width), moe.Mixture(sharing), torch.nn.Linear(width, 1)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            parameter.uniform_(-0.3, 0.3, generator=generator)
    return model


def loss_of(model: Any, step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(64, 16, generator=generator)
    target = x[:, :4].prod(1, keepdim=True)
    return (model(x) - target).square().mean()  # type: ignore[no-any-return]


def groups_of(model: torch.nn.Module, holding: Any) -> list[dict[str, Any]]:
    """The experts first: their place among the groups is of no importance."""
    named = list(model.named_parameters())
    return [
        {
            "params": [(n, p) for n, p in named if ".experts." in n],
            "expert_group": holding,
            "weight_decay": 0.1,
        },
        {"params": [(n, p) for n, p in named if ".experts." not in n]},
    ]


def values_of(model: torch.nn.Module) -> Values:
    return {n: p.detach().flatten().tolist() for n, p in model.named_parameters()}


def by_torch() -> Values:
    """Every rank's batch in one process that holds all experts."""
    alone, _ = dist.new_subgroups(1)
    model = model_of(alone)
    groups = groups_of(model, None)
    for group in groups:
        group.pop("expert_group", None)
        group["params"] = [p for _, p in group["params"]]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(WORLD):
            (loss_of(model, step, rank) / WORLD).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return values_of(model)


class Run:
    """Steps of an engine of a stage of ZeRO, or of an optimizer by its name."""

    def __init__(self, share: int, kind: int | str) -> None:
        sharing, holding = example().groups_of(share)
        self.model = model_of(sharing)
        groups = groups_of(self.model, holding)
        self.by: Any
        if isinstance(kind, int):
            settings = {"lr": 1e-2, "weight_decay": 0}
            config = {
                "train_micro_batch_size_per_gpu": 64,
                "optimizer": {"type": "AdamW", "params": settings},
                "zero_optimization": {"stage": kind},
                "gradient_clipping": 0.5,
            }
            given = {"model_parameters": groups, "config": config}
            self.by, *_ = thinwire.initialize(model=self.model, **given)
        else:
            freeze = {"freeze_step": 100} if kind == "OnebitAdam" else {}
            made = getattr(thinwire, kind)
            self.by = made(
                groups, lr=1e-2, weight_decay=0.0, max_grad_norm=0.5, **freeze
            )

    def step(self, number: int) -> None:
        loss = loss_of(self.model, number, dist.get_rank())
        if isinstance(self.by, thinwire.Engine):
            self.by.backward(loss)
        else:
            self.by.zero_grad()
            loss.backward()
        self.by.step()


def train(kinds: list[int | str], folder: str) -> int:
    """Two groups of two to the end, saved in between, and on in groups of any size. Returns
    how many parameters of experts this rank holds."""
    dist.init_process_group("gloo")
    want = by_torch()
    for kind in kinds:
        run, root = Run(2, kind), f"{folder}/{kind}"
        for step in range(STEPS):
            if step == STEPS // 2:
                thinwire.save(root, run.by)
            run.step(step)
        assert close(values_of(run.model), want)
        if isinstance(kind, str):
            state = run.by.state_dict()
            assert all("expert_group" not in g for g in state["param_groups"])
            run.by.load_state_dict(state)
        for share in (1, 4, 2):
            resumed = Run(share, kind)
            assert thinwire.load(root, resumed.by).step == STEPS // 2
            for step in range(STEPS // 2, STEPS):
                resumed.step(step)
            assert close(values_of(resumed.model), want), (kind, share)
    return sum(".experts." in name for name in values_of(run.model))


def close(values: Values, want: Values) -> bool:
    return all(
        torch.allclose(torch.tensor(v), torch.tensor(want[name]), 1e-4, 1e-5)
        for name, v in values.items()
    )


@pytest.mark.parametrize("kinds", [[0, 1, 2], ["AdamW", "OnebitAdam"]])
def test_a_mixture_trains_as_in_torch_and_continues_in_other_groups(
    kinds: list[int | str], tmp_path: Path
) -> None:
    held = ranks.results(WORLD, __file__, "train", kinds, str(tmp_path), seconds=110)
    assert sum(held) == 2 * 4 * 4


@by_ranks(2)
def test_what_is_no_group_is_refused_by_its_name(comm: Any) -> None:
    dense, expert = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))
    for group, text in (("all", "expert_group"), (comm, "exp_avg_mask")):
        with pytest.raises(thinwire.InvalidArgument, match=text):
            thinwire.OnebitAdam(
                [
                    {"params": [dense]},
                    {
                        "params": [expert],
                        "expert_group": group,
                        "exp_avg_mask": [torch.ones(4)],
                    },
                ],
                process_group=comm,
            )
    with pytest.raises(thinwire.InvalidArgument, match="some groups must be"):
        thinwire.AdamW(
            [{"params": [dense, expert], "expert_group": comm}], process_group=comm
        )


@pytest.mark.parametrize("is_first", [False, True])
def test_a_rank_without_experts_takes_names_as_others_do(is_first: bool) -> None:
    def run(comm: Any) -> torch.Tensor:
        layer = torch.nn.Linear(4, 2)
        torch.nn.init.ones_(layer.weight)
        groups = [
            {"params": list(layer.named_parameters())},
            {"params": [], "expert_group": comm},
        ]
        if is_first:
            groups.reverse()
        optimizer = thinwire.AdamW(groups, process_group=comm)
        layer(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        assert optimizer.report is not None and optimizer.report.applied
        return layer.weight.detach()

    first, second = run_local_ranks(2, run)
    assert torch.equal(first, second) and bool((first < 1).all())


def test_a_warning_at_the_start_says_that_low_bit_experts_cannot_be_saved(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def run(comm: Any) -> None:
        model = torch.nn.ModuleList([torch.nn.Linear(4, 2), torch.nn.Linear(2, 2)])
        groups = [{"params": list(part.parameters())} for part in model]
        groups[1]["expert_group"] = comm
        few = {"zero_bits_up": 4, "zero_bits_down": 4}
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
            "zero_optimization": {"stage": 2},
            "thinwire": few,
        }
        engine, *_ = thinwire.initialize(
            model=model, model_parameters=groups, config=config, process_group=comm
        )
        with pytest.raises(thinwire.Error, match="cannot be saved"):
            thinwire.save(tmp_path, engine)

    with caplog.at_level("WARNING", logger="thinwire"):
        run_local_ranks(2, run)
    assert caplog.text.count("has experts, and cannot save a checkpoint") == 1


class Grid:
    """Ranks 0 and 1 hold the two halves of a model, 2 and 3 the same once more."""

    def __init__(self) -> None:
        self.model, self.data = example().groups_of(2)

    def get_data_parallel_group(self) -> Any:
        return self.data

    def get_model_parallel_group(self) -> Any:
        return self.model


def train_halves(stage: int) -> None:
    dist.init_process_group("gloo")
    grid = Grid()
    half = dist.get_rank(grid.model)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "weight_decay": 0}},
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 1.0,
    }
    torch.manual_seed(half)  # equal values would count once
    model = torch.nn.Linear(1, 1, bias=False)
    lean: Any = {"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 2}}}
    lean |= {"thinwire": {"lean": True}, "bf16": {"enabled": True}}
    for refused in (lean, {"thinwire": {"semantics": "deepspeed"}}):
        given = {"train_micro_batch_size_per_gpu": 1} | refused
        with pytest.raises(thinwire.InvalidArgument, match="model-parallel group"):
            thinwire.initialize(model=model, mpu=grid, config=given)
        assert model.weight.dtype == torch.float32
    engine = thinwire.initialize(model=model, mpu=grid, config=config)[0]
    assert engine.world_size == 2
    # Means of 3 and of 4: of the whole model 5.
    gradient = 3.0 + half + (1 if dist.get_rank() < 2 else -1)
    engine.backward(engine.module.weight.sum() * gradient)
    engine.step()
    assert abs(engine.report.grad_norm - 5) < 1e-6
    assert abs(engine.report.clip_factor - 0.2) < 1e-6
    broken = float("inf") if dist.get_rank() == 3 else 1.0
    engine.backward(engine.module.weight.sum() * broken)
    engine.step()
    assert not engine.report.applied


@pytest.mark.parametrize("stage", [0, 2])
def test_halves_of_a_model_are_clipped_by_one_norm_and_skip_together(
    stage: int,
) -> None:
    ranks.results(WORLD, __file__, "train_halves", stage)


def lose_a_rank() -> list[str]:
    """Ranks 2 and 3 hold the same experts; rank 3 gives up."""
    thinwire.init_distributed("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([first, first + 1]) for first in (0, 2)]
    dense, expert = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))
    groups: list[Any] = [
        {"params": [("dense", dense)]},
        {"params": [("expert", expert)], "expert_group": pairs[rank // 2]},
    ]
    named = [*groups]
    if rank == 3:
        named[1] = {**groups[1], "params": [("other", expert)]}
    said = [ranks.failure_of(lambda: thinwire.AdamW(named))]
    optimizer = thinwire.AdamW(groups)
    comm = optimizer._experts.all[0]
    if rank == 3:
        comm.give_up("no more data")
    elif rank == 2:
        said.append(ranks.failure_of(comm.barrier))
    dist.barrier()
    return said


def test_errors_of_experts_name_ranks_of_the_world() -> None:
    values = ranks.results(4, __file__, "lose_a_rank")
    assert "from 0 on, are ranks 2, 3 of all" in values[2][0]
    assert "rank 3 gave up: no more data" in values[2][1]

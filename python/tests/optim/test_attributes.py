# SPDX-License-Identifier: Apache-2.0
"""Attributes of DeepSpeed and Megatron: parts of a split model, and experts."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from local_ranks import by_ranks
from thinwire import InvalidArgument, _core
from thinwire.comm import run_local_ranks
from thinwire.optim._attributes import find_experts

LOW_BIT = ("OnebitAdam", "OnebitLamb", "ZeroOneAdam", "LeanOnebitAdam")
CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "Adam", "params": {"lr": 0.1}},
}


def mpu_of(data: Any, **more: Any) -> Any:
    getters = {f"get_{name}_group": lambda group=g: group for name, g in more.items()}
    return SimpleNamespace(get_data_parallel_group=lambda: data, **getters)


def alone() -> Any:
    return _core.local_group(1, 60.0)[0]


@pytest.mark.quick
@pytest.mark.parametrize("kind", LOW_BIT)
@by_ranks(2)
def test_the_mpu_of_the_handle_gives_the_group(comm: Any, kind: str) -> None:
    made, parameters = getattr(thinwire, kind), []
    for group in (comm, alone()):
        parameter = torch.nn.Parameter(torch.full((4,), comm.rank + 1.0))
        handle = SimpleNamespace(mpu=mpu_of(group))
        optimizer = made([parameter], lr=0.1, deepspeed=handle)
        assert optimizer._comm is group
        parameters.append(parameter.detach())
    assert [p[0] for p in parameters] == [1, comm.rank + 1]
    with pytest.raises(InvalidArgument, match="deepspeed.mpu"):
        made([parameter], lr=0.1, deepspeed=SimpleNamespace(mpu=object()))


class Mixture(torch.nn.Module):
    """A dense parameter and an expert, marked as DeepSpeed does."""

    def __init__(self, rank: int, is_marked: bool = True) -> None:
        super().__init__()
        self.expert = torch.nn.Parameter(torch.full((4,), rank + 1.0))
        self.dense = torch.nn.Parameter(torch.ones(4))
        if is_marked:
            self.expert.allreduce = False  # type: ignore[attr-defined]
            self.expert.group_name = "ep_size_2"  # type: ignore[attr-defined]

    def forward(self) -> torch.Tensor:
        return (self.dense + self.expert).sum()


def groups_of(model: Mixture, form: str) -> list[dict[str, Any]]:
    if form == "one":
        return [{"params": list(model.named_parameters())}]
    by_key: dict[str, Any] = {} if form == "marks" else {"moe": True}
    expert = {"params": [("expert", model.expert)], "name": "ep_size_2"} | by_key
    return [expert, {"params": [("dense", model.dense)]}]


def trained(model: Mixture, form: str, by: str, comm: Any, mpu: Any) -> Any:
    groups = groups_of(model, form)
    handle = SimpleNamespace(mpu=mpu)
    if by == "engine":
        given: Any = {"process_group": comm} if mpu is None else {"mpu": mpu}
        given |= {"model_parameters": groups, "config": CONFIG}
        engine = thinwire.initialize(model=model, **given)[0]
        engine.backward(engine())
        engine.step()
        return engine
    optimizer = getattr(thinwire, by)(
        groups, lr=0.1, deepspeed=handle, process_group=comm if mpu is None else None
    )
    model().backward()
    optimizer.step()
    return optimizer


@pytest.mark.quick
@pytest.mark.parametrize("form", ["one", "marks", "moe"])
@pytest.mark.parametrize("by", ["engine", "OnebitAdam", "OnebitLamb", "ZeroOneAdam"])
@by_ranks(2)
def test_marked_experts_are_never_dense(comm: Any, by: str, form: str) -> None:
    def make() -> Mixture:
        return Mixture(comm.rank, is_marked=form != "moe")

    with pytest.raises(InvalidArgument, match="'expert' is marked.*expert_group="):
        trained(make(), form, by, comm, None)
    holders = alone()
    model = make()
    mpu = mpu_of(comm, expert_data_parallel=holders)
    made = trained(model, form, by, comm, mpu)
    groups = (made.optimizer if by == "engine" else made).param_groups
    assert [g.get("expert_group") for g in groups].count(holders) == 1
    assert comm.rank < float(model.expert.detach().mean()) < comm.rank + 1
    assert float(model.dense.detach().mean()) < 1


@pytest.mark.quick
@pytest.mark.parametrize("form", ["one", "marks", "moe"])
@pytest.mark.parametrize("by", ["engine", "OnebitAdam", "ZeroOneAdam"])
def test_states_of_marked_experts_fit_any_number_of_ranks(
    by: str, form: str, tmp_path: Path
) -> None:
    def made(comm: Any) -> Any:
        model = Mixture(0, is_marked=form != "moe")
        mpu = mpu_of(comm, expert_data_parallel=comm) if comm.size > 1 else None
        return model, trained(model, form, by, comm, mpu)

    def save(comm: Any) -> Any:
        model, of = made(comm)
        thinwire.save(tmp_path / str(comm.size), of)
        values = [p.detach().clone() for p in model.parameters()]
        return values, None if by == "engine" else of.state_dict()

    def load(comm: Any) -> None:
        values, state = states[3 - comm.size]
        model, of = made(comm)
        thinwire.load(tmp_path / str(3 - comm.size), of)
        assert all(map(torch.equal, model.parameters(), values))
        if state is not None:
            of.load_state_dict(state)

    states = {n: run_local_ranks(n, save)[0] for n in (1, 2)}
    for n in (1, 2):
        run_local_ranks(n, load)


@pytest.mark.quick
def test_one_rank_may_train_experts_alone() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(4))], "moe": True}]
    optimizer = thinwire.OnebitAdam(groups, process_group=alone())
    assert "expert_group" not in optimizer.param_groups[0]


@pytest.mark.quick
def test_deepspeeds_groups_are_known_if_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"ep_size_2": object(), "ep_size_4": object()}
    loaded = SimpleNamespace(_get_expert_data_parallel_group_dict=lambda: known)
    monkeypatch.setitem(sys.modules, "deepspeed.utils.groups", loaded)
    model, other = Mixture(0), Mixture(0).expert
    setattr(other, "group_name", "ep_size_4")  # noqa: B010
    groups = [{"params": [model.expert, model.dense, other], "lr": 0.5}]
    assert find_experts(groups, None, 2) == [0, 0]
    assert [
        (g["params"][0] is p, g.get("expert_group"), g["lr"])
        for g, p in zip(groups, (model.dense, model.expert, other), strict=True)
    ] == [(True, None, 0.5), *((True, group, 0.5) for group in known.values())]


@pytest.mark.quick
@by_ranks(2)
def test_an_engine_refuses_experts_that_it_would_make_equal(comm: Any) -> None:
    model = Mixture(comm.rank)
    model.expert.requires_grad_(False)
    groups = groups_of(model, "marks")
    groups[0]["expert_group"] = alone()
    with pytest.raises(InvalidArgument, match="'expert' is an expert and is not"):
        thinwire.initialize(
            model=model, model_parameters=groups, config=CONFIG, process_group=comm
        )
    assert float(model.expert[0]) == comm.rank + 1


@pytest.mark.quick
@by_ranks(2)
def test_an_optimizer_that_makes_its_own_steps_takes_no_experts(comm: Any) -> None:
    model = Mixture(comm.rank)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [dict(group) for group in sgd.param_groups]
    mpu = mpu_of(comm, expert_data_parallel=alone())
    config = {"train_micro_batch_size_per_gpu": 1}
    with pytest.raises(InvalidArgument, match="SGD makes its own steps.*expert_group"):
        thinwire.initialize(model=model, optimizer=sgd, mpu=mpu, config=config)
    assert [list(g) for g in sgd.param_groups] == [list(g) for g in before]
    assert [len(g["params"]) for g in sgd.param_groups] == [2]


@pytest.mark.quick
@pytest.mark.parametrize("num_ranks", [1, 2])
@by_ranks("num_ranks")
def test_a_scheduler_of_the_given_adam_sets_rates_of_experts(
    comm: Any, num_ranks: int
) -> None:
    model = Mixture(comm.rank)
    adam = torch.optim.AdamW(model.parameters(), lr=0.1)
    engine = thinwire.initialize(
        model=model,
        optimizer=adam,
        lr_scheduler=torch.optim.lr_scheduler.ExponentialLR(adam, 0.5),
        mpu=mpu_of(comm, expert_data_parallel=alone()),
        config={"train_micro_batch_size_per_gpu": 1},
    )[0]
    for step in range(1, 4):
        engine.backward(engine())
        engine.step()
        assert engine.get_lr() == [0.1 * 0.5**step] * 2
    assert adam.param_groups[0] is engine.optimizer.param_groups[0]


def without_group() -> list[str]:
    dist.init_process_group("gloo")
    said = []
    for mark in ("model_parallel", "tensor_model_parallel"):
        model = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(model.weight, dist.get_rank())
        setattr(model.weight, mark, True)
        calls = [
            lambda m=model: thinwire.initialize(model=m, config=CONFIG),
            *(
                lambda m=model, k=k: getattr(thinwire, k)(m.named_parameters())
                for k in ("AdamW", *LOW_BIT)
            ),
        ]
        said += [ranks.failure_of(call) for call in calls]
        assert float(model.weight.detach()) == dist.get_rank()
    ddp = torch.nn.parallel.DistributedDataParallel(Mixture(0))
    said.append(ranks.failure_of(lambda: thinwire.ddp_hook(ddp, bits=8)))
    return said


def test_parts_of_a_model_are_refused_without_a_group() -> None:
    for said in ranks.results(2, __file__, "without_group"):
        *marks, of_hook = said
        assert all("'weight' has the attribute" in text for text in marks), marks
        assert "'expert' is marked as an expert" in of_hook

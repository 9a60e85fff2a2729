# SPDX-License-Identifier: Apache-2.0
"""thinwire.save and load of optimizers: what param_groups say is carried, too. States in
torch.distributed.checkpoint, and every scheduler of torch."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import optim_cases as cases
import pytest
import thinwire
import torch
import torch.distributed.checkpoint as dcp
from local_ranks import by_ranks
from thinwire.errors import CorruptCheckpoint, FailedPrecondition, InvalidArgument
from thinwire.integrations._saved import states_beside
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import lr_scheduler as schedulers

pytestmark = pytest.mark.quick


@by_ranks(2)
def test_numbers_in_param_groups_are_carried(comm: Any, tmp_path: Path) -> None:
    net, optimizer = cases.made(
        "OnebitAdam", comm, weight_decay=0.01, lr=torch.tensor(0.01)
    )
    cases.train(net, optimizer, range(2), comm.rank)
    group = optimizer.param_groups[0]
    group |= {"weight_decay": 5.0, "initial_lr": 0.25, "tag": "a", "hook": print}
    thinwire.save(tmp_path, optimizer, durable=False)
    again, other = cases.made("OnebitAdam", comm, weight_decay=0.01)
    report = thinwire.load(tmp_path, other)
    loaded = other.param_groups[0]
    assert (loaded["weight_decay"], loaded["initial_lr"]) == (5.0, 0.25)
    assert loaded["tag"] == "a" and "hook" not in loaded
    assert report.extra == {}
    for trained, o in ((net, optimizer), (again, other)):
        cases.train(trained, o, range(2, 5), comm.rank)
    assert cases.bits(again) == cases.bits(net)


@by_ranks(1)
def test_weights_alone_leave_param_groups(comm: Any, tmp_path: Path) -> None:
    _, optimizer = cases.made("OnebitAdam", comm, weight_decay=0.5)
    thinwire.save(tmp_path, optimizer, durable=False)
    _, other = cases.made("OnebitAdam", comm)
    other.param_groups[0] |= {"lr": 0.125, "weight_decay": 0.25}
    thinwire.load(tmp_path, other, weights_only=True)
    group = other.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.125, 0.25)


@by_ranks(2)
def test_a_group_that_cannot_be_followed_is_refused_on_all_ranks(
    comm: Any, tmp_path: Path
) -> None:
    _, optimizer = cases.made("OnebitAdam", comm)
    if comm.rank == 1:
        optimizer.param_groups[0]["betas"] = (0.5, 0.5)
    with pytest.raises(thinwire.Error, match=r"\['betas'\] was"):
        thinwire.save(tmp_path, optimizer, durable=False)
    assert not any(tmp_path.iterdir())


def test_a_state_dict_without_its_states_says_where_they_are() -> None:
    net, optimizer = cases.made("OnebitAdam")
    cases.train(net, optimizer, range(6))
    with states_beside([optimizer]):
        saved = optimizer.state_dict()
    assert saved["state"] == {}
    other = cases.make("OnebitAdam", cases.model().parameters())
    with pytest.raises(CorruptCheckpoint, match="in a checkpoint of Thinwire's beside"):
        other.load_state_dict(saved)
    other.load_state_dict(optimizer.state_dict())
    assert other._made.optimizer.steps == 6


@pytest.mark.parametrize("kind", ["AdamW", "OnebitAdam"])
def test_a_state_goes_there_and_back(kind: str, tmp_path: Any) -> None:
    net, optimizer = cases.made(kind)
    stepped: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: stepped.append(1))
    state = get_optimizer_state_dict(net, optimizer)
    assert not stepped and optimizer._made.optimizer.steps == 0
    assert set(state["state"]) == {name for name, _ in net.named_parameters()}

    cases.train(net, optimizer, range(3))
    saved = get_optimizer_state_dict(net, optimizer)
    dcp.save({"optimizer": saved}, checkpoint_id=tmp_path)

    twin, other = cases.made(kind, lr=0.5)
    read = {"optimizer": get_optimizer_state_dict(twin, other)}
    dcp.load(read, checkpoint_id=tmp_path)
    twin.load_state_dict(net.state_dict())
    set_optimizer_state_dict(twin, other, read["optimizer"])
    assert other._made.optimizer.steps == 3 and other.param_groups[0]["lr"] == 1e-2
    mine, theirs = optimizer.state_dict()["state"], other.state_dict()["state"]
    for name in ("exp_avg", "exp_avg_sq"):
        assert all(torch.equal(mine[k][name], theirs[k][name]) for k in mine)
    cases.train(net, optimizer, range(3, 4))
    cases.train(twin, other, range(3, 4))
    assert cases.bits(net) == cases.bits(twin)


@pytest.mark.parametrize("kind", ["Lamb", "OnebitLamb"])
def test_states_have_limits_of_groups_only_as_of_old(kind: str) -> None:
    for limits in ({}, {"max_coeff": 5.0}):
        parts = [{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(2)]
        parts[1]["max_coeff"] = 0.5  # type: ignore[assignment]
        optimizer = cases.make(kind, parts, **limits)
        first, second = optimizer.state_dict()["param_groups"]
        assert {"max_coeff", "min_coeff"}.isdisjoint(first)
        assert second["max_coeff"] == 0.5 and "min_coeff" not in second


def test_the_compressed_stage_is_refused_by_name() -> None:
    net, optimizer = cases.made("OnebitAdam")
    cases.train(net, optimizer, range(6))
    state = get_optimizer_state_dict(net, optimizer)
    other = cases.make("OnebitAdam", net.parameters())
    with pytest.raises(InvalidArgument, match="thinwire.save and thinwire.load"):
        set_optimizer_state_dict(net, other, state)


MADE: dict[str, Any] = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda t: 0.9**t),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda t: 0.9),
    "StepLR": lambda o: schedulers.StepLR(o, 2),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 5]),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.1, 1.0, 6),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 8),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 6),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(
        o, 3
    ),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 1e-3, 1e-2, 2, cycle_momentum=False),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(
        o, 1e-2, total_steps=9, cycle_momentum=False
    ),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o,
        [schedulers.ConstantLR(o, 0.1, 2), schedulers.ExponentialLR(o, 0.9)],
        milestones=[2],
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o, 0.1, 2), schedulers.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 1e-3, anneal_epochs=3),
}


def test_all_schedulers_of_torch_are_here() -> None:
    known = {
        name
        for name, kind in vars(schedulers).items()
        if inspect.isclass(kind)
        and issubclass(kind, schedulers.LRScheduler)
        and not name.startswith("_")
        and name != "LRScheduler"
    }
    assert known <= set(MADE)


def advance(scheduler: Any, step: int) -> None:
    if isinstance(scheduler, schedulers.ReduceLROnPlateau):
        scheduler.step(float(step))
    else:
        scheduler.step()


def run(name: str, optimizer: Any, net: Any, scheduler: Any, steps: Any) -> list[float]:
    rates = []
    for step in steps:
        cases.train(net, optimizer, [step])
        rates.append(optimizer._made.optimizer.learning_rate(0))
        assert rates[-1] == pytest.approx(float(optimizer.param_groups[0]["lr"]))
        advance(scheduler, step)
    return rates


@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01)], ids=["number", "tensor"])
@pytest.mark.parametrize("name", MADE)
def test_steps_and_resumes(name: str, lr: Any) -> None:
    def begin(seed: int = 0) -> tuple[Any, Any, Any]:
        net = cases.model(seed)
        rate = lr.clone() if isinstance(lr, torch.Tensor) else lr
        optimizer = cases.make("OnebitAdam", net.parameters(), lr=rate)
        return net, optimizer, MADE[name](optimizer)

    net, optimizer, scheduler = begin()
    rates = run(name, optimizer, net, scheduler, range(8))
    assert len(set(rates)) > 1

    net, optimizer, scheduler = begin()
    first = run(name, optimizer, net, scheduler, range(5))
    saved = net.state_dict(), optimizer.state_dict(), scheduler.state_dict()
    resumed, other, again = begin(seed=1)
    resumed.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    again.load_state_dict(saved[2])
    assert first + run(name, other, resumed, again, range(5, 8)) == rates
    run(name, optimizer, net, scheduler, range(5, 8))
    assert cases.bits(resumed) == cases.bits(net)


@pytest.mark.parametrize("kind", ["OneCycleLR", "CyclicLR"])
def test_cycled_betas_are_refused_by_name(kind: str) -> None:
    net, optimizer = cases.made("OnebitAdam")
    if kind == "OneCycleLR":
        schedulers.OneCycleLR(optimizer, 1e-2, total_steps=9)
    else:
        cyclic = schedulers.CyclicLR(optimizer, 1e-3, 1e-2, 2, base_momentum=0.5)
        optimizer.step()  # It begins with max_momentum, which is the usual beta.
        cyclic.step()
    before = cases.bits(net)
    with pytest.raises(
        FailedPrecondition, match=f"betas.*{kind}.*cycle_momentum=False"
    ):
        optimizer.step()
    assert cases.bits(net) == before


def test_weight_decay_may_change() -> None:
    def run_with(decays: list[float]) -> str:
        net, optimizer = cases.made("AdamW", weight_decay=decays[0])
        for step, decay in enumerate(decays):
            optimizer.param_groups[0]["weight_decay"] = decay
            cases.train(net, optimizer, [step])
        return cases.bits(net)

    assert run_with([0.1, 0.1, 0.1]) != run_with([0.1, 0.1, 0.2])

# SPDX-License-Identifier: Apache-2.0
"""thinwire.save and load of optimizers: what param_groups say is carried, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optim_cases as cases
import pytest
import thinwire
import torch
from local_ranks import by_ranks
from thinwire.errors import CorruptCheckpoint
from thinwire.integrations._saved import states_beside

pytestmark = pytest.mark.quick


def made(comm: Any, **keywords: Any) -> tuple[Any, Any, Any]:
    net, optimizer = cases.made("OnebitAdam", comm, **keywords)
    return net, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def train(net: Any, optimizer: Any, scheduler: Any, steps: range, comm: Any) -> None:
    cases.train(net, optimizer, steps, comm.rank, scheduler.step)


@pytest.mark.parametrize("stop", [0, 1, 6])
@pytest.mark.parametrize("tensor", [False, True])
@by_ranks(2)
def test_a_chainable_scheduler_goes_on_exactly(
    comm: Any, tmp_path: Path, stop: int, tensor: bool
) -> None:
    lr = torch.tensor(0.01) if tensor else 0.01
    net, optimizer, scheduler = made(comm, lr=lr)
    train(net, optimizer, scheduler, range(stop), comm)
    thinwire.save(tmp_path, optimizer, durable=False)
    saved, rate = scheduler.state_dict(), float(optimizer.param_groups[0]["lr"])
    train(net, optimizer, scheduler, range(stop, 9), comm)
    lr = torch.tensor(0.01) if tensor else 0.01
    again, other, schedule = made(comm, lr=lr)
    thinwire.load(tmp_path, other)
    schedule.load_state_dict(saved)
    assert float(other.param_groups[0]["lr"]) == rate
    train(again, other, schedule, range(stop, 9), comm)
    assert cases.bits(again) == cases.bits(net)


@by_ranks(2)
def test_numbers_in_param_groups_are_carried(comm: Any, tmp_path: Path) -> None:
    net, optimizer, _ = made(comm, weight_decay=0.01)
    cases.train(net, optimizer, range(2), comm.rank)
    group = optimizer.param_groups[0]
    group |= {"weight_decay": 5.0, "initial_lr": 0.25, "tag": "a", "hook": print}
    thinwire.save(tmp_path, optimizer, durable=False)
    again, other, _ = made(comm, weight_decay=0.01)
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
    _, optimizer, _ = made(comm, weight_decay=0.5)
    thinwire.save(tmp_path, optimizer, durable=False)
    _, other, _ = made(comm)
    other.param_groups[0] |= {"lr": 0.125, "weight_decay": 0.25}
    thinwire.load(tmp_path, other, weights_only=True)
    group = other.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.125, 0.25)


@by_ranks(2)
def test_a_group_that_cannot_be_followed_is_refused_on_all_ranks(
    comm: Any, tmp_path: Path
) -> None:
    _, optimizer, _ = made(comm)
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

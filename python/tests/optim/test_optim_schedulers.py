# SPDX-License-Identifier: Apache-2.0
"""Every scheduler of torch steps and resumes."""

from __future__ import annotations

import inspect
from typing import Any

import optim_cases as cases
import pytest
import torch
from thinwire.errors import FailedPrecondition
from torch.optim import lr_scheduler as schedulers

pytestmark = pytest.mark.quick

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

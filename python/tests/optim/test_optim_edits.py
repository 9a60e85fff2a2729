# SPDX-License-Identifier: Apache-2.0
"""Values that a program writes into parameters between steps count, in any way."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optim_cases as cases
import pytest
import thinwire
import torch
from local_ranks import by_ranks
from thinwire.comm import run_local_ranks
from thinwire.errors import FailedPrecondition

pytestmark = pytest.mark.quick

HALF = 0.5


def in_place(net: torch.nn.Module) -> None:
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(HALF)


def of_the_data(net: torch.nn.Module) -> None:
    for p in net.parameters():
        p.data.fill_(HALF)


def other_data(net: torch.nn.Module) -> None:
    for p in net.parameters():
        p.data = torch.full_like(p, HALF)


def through_dlpack(net: torch.nn.Module) -> None:
    for p in net.parameters():
        torch.utils.dlpack.from_dlpack(p.detach()).fill_(HALF)


def load(net: torch.nn.Module) -> None:
    state = net.state_dict()
    net.load_state_dict({k: torch.full_like(v, HALF) for k, v in state.items()})


WAYS = (in_place, of_the_data, other_data, through_dlpack, load)
# ZeroOneAdam is in its local stage after 14 steps, with and without an exchange since.
STOPS = {"ZeroOneAdam": (6, 14, 15, 16), "LeanOnebitAdam": (2, 6)}
KINDS = ("AdamW", "OnebitAdam", "LeanOnebitAdam", "ZeroOneAdam")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CASES = [*itertools.product(KINDS, DTYPES)]
CASES.remove(("LeanOnebitAdam", torch.float16))  # refused
Write = Callable[[torch.nn.Module], None]


def distance(net: torch.nn.Module) -> float:
    return max(float((p.detach().float() - HALF).abs().max()) for p in net.parameters())


@pytest.mark.parametrize("kind,dtype", CASES)
@pytest.mark.parametrize("write", WAYS)
@by_ranks(2)
def test_a_step_goes_on_from_what_was_written(
    comm: Any, kind: str, write: Write, dtype: torch.dtype
) -> None:
    for stop in STOPS.get(kind, (6,)):
        net, optimizer = cases.made(kind, comm, lr=1e-4, dtype=dtype)
        cases.train(net, optimizer, range(stop), comm.rank)
        write(net)
        for step in range(stop, stop + 3):
            cases.train(net, optimizer, [step], comm.rank)
            assert distance(net) < 0.05


@pytest.mark.parametrize("kind", ["AdamW", "ZeroOneAdam"])
@by_ranks(2)
def test_what_was_written_is_evaluated_and_saved(
    comm: Any, kind: str, tmp_path: Path
) -> None:
    net, optimizer = cases.made(kind, comm, dtype=torch.bfloat16)
    cases.train(net, optimizer, range(15), comm.rank)
    of_the_data(net)
    with optimizer.evaluation():
        assert distance(net) == 0
    cases.train(net, optimizer, range(15, 17), comm.rank)
    with optimizer.evaluation():
        of_the_data(net)
    entries = optimizer.state_dict()["state"].values()
    assert all(bool((e["masters"].bfloat16() == HALF).all()) for e in entries)
    cases.train(net, optimizer, range(17, 18), comm.rank)
    of_the_data(net)
    thinwire.save(tmp_path, optimizer, durable=False)
    again = cases.model(dtype=torch.bfloat16)
    thinwire.load(tmp_path, cases.make(kind, again.parameters(), comm))
    assert distance(again) == 0


def test_weights_loaded_before_an_empty_or_a_torch_state_stay() -> None:
    other = cases.model()
    moments = torch.optim.AdamW(other.parameters(), lr=1e-4)
    cases.loss_of(other, 0, 0).backward()
    moments.step()
    fresh = torch.optim.AdamW(cases.model().parameters(), lr=1e-4)
    for state in (moments.state_dict(), fresh.state_dict()):
        net, optimizer = cases.made("AdamW", lr=1e-4, dtype=torch.bfloat16)
        of_the_data(net)
        optimizer.load_state_dict(state)
        cases.train(net, optimizer, range(1))
        assert distance(net) < 0.01


def test_nothing_written_changes_nothing() -> None:
    def run(comm: Any) -> list[str]:
        ends = []
        for touch in (False, True):
            net, optimizer = cases.made("ZeroOneAdam", comm)
            for step in range(30):
                cases.train(net, optimizer, [step], comm.rank)
                if touch and comm.rank == 0:  # counted by autograd, the same values
                    net.load_state_dict(net.state_dict())
            ends.append(cases.bits(net))
        assert ends[0] == ends[1]
        return ends

    run_local_ranks(2, run)


@by_ranks(2)
def test_writes_that_leave_ranks_different_are_refused(comm: Any) -> None:
    net, optimizer = cases.made("ZeroOneAdam", comm)
    step = 0
    while optimizer._native.optimizer.steps_behind == 0:
        cases.train(net, optimizer, [step], comm.rank)
        step += 1
    for p in net.parameters():
        p.data.mul_(2)
    with pytest.raises(FailedPrecondition, match="while they differ from rank"):
        optimizer.state_dict()
    with pytest.raises(FailedPrecondition, match="while they differ from rank"):
        cases.train(net, optimizer, [step], comm.rank)
    of_the_data(net)
    optimizer.synchronize()
    for p in net.parameters():
        p.data.mul_(2)
    cases.train(net, optimizer, [step], comm.rank)
    assert all(float((p.detach() - 1).abs().max()) < 0.2 for p in net.parameters())

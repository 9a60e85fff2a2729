# SPDX-License-Identifier: Apache-2.0
"""Values that a program writes into parameters between steps count, in any way, of an
Engine and of an optimizer."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optim_cases as cases
import pytest
import thinwire
import torch
from engines import (
    BF16,
    RUNS,
    ZERO_ONE,
    Net,
    config_of,
    flat,
    loss_of,
    make,
    optimizer_of,
    same_bits,
    train,
    trained,
)
from local_ranks import by_ranks
from thinwire.errors import FailedPrecondition

pytestmark = pytest.mark.quick

# Between local steps writing is refused, and some early steps are long.
FOLLOWED = RUNS.keys() - {"zero_one_adam", "onebit_lamb_bf16", "onebit_adam_deepspeed"}
HALF = 0.5
KINDS = (
    *("AdamW", "OnebitAdam", "LeanOnebitAdam", "ZeroOneAdam", "OuterAdamW"),
    "OnebitAdamUnder",
)
DIFFER = ("ZeroOneAdam", "OnebitAdamUnder")  # from rank to rank between exchanges


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


def load_halves(net: torch.nn.Module) -> None:
    state = net.state_dict()
    net.load_state_dict({k: torch.full_like(v, HALF) for k, v in state.items()})


WAYS = (in_place, of_the_data, other_data, through_dlpack, load_halves)


def distance(net: torch.nn.Module) -> float:
    return max(float((p.detach().float() - HALF).abs().max()) for p in net.parameters())


@pytest.mark.parametrize("write", WAYS)
@pytest.mark.parametrize("name", sorted(FOLLOWED))
@by_ranks(2)
def test_what_is_written_between_steps_counts(comm: Any, name: str, write: Any) -> None:
    engine = trained(comm, 2, **RUNS[name])
    write(engine.module)
    train(engine, range(2, 3))
    assert engine.report.applied
    assert distance(engine.module) < 0.1  # a step from there


@pytest.mark.parametrize("name", ["zero_2_bf16", "zero_1_fp16"])
@by_ranks(2)
def test_values_that_change_places_count(comm: Any, name: str) -> None:
    engine = make(comm, config_of(**RUNS[name]))
    weight = engine.module.first.weight.view(-1).detach()
    weight.copy_(torch.arange(float(weight.numel())))
    train(engine, range(1))
    want = torch.cat([weight[4:8], weight[:4], weight[8:]])
    weight.copy_(want)
    train(engine, range(1, 2))
    assert (weight - want).abs().max() < 2


@pytest.mark.parametrize("kind", ["engine", "zero", *KINDS[:3]])
@by_ranks(2)
def test_writing_leaves_other_masters_as_they_are(comm: Any, kind: str) -> None:
    """Steps that are smaller than a unit of bf16 add up in them."""
    a, b = (torch.nn.Parameter(torch.ones(33, dtype=torch.bfloat16)) for _ in "ab")
    if kind in KINDS:
        optimizer: Any = cases.make(kind, [a, b], comm, lr=1e-4)
    else:
        net = torch.nn.ParameterList([a, b])
        stage = {"stage": 2 if kind == "zero" else 0}
        settings = {"optimizer": {"type": "Adam", "params": {"lr": 1e-4}}}
        settings |= {"bf16": {"enabled": True}, "zero_optimization": stage}
        optimizer = make(comm, settings, model=net)
    for step in range(60):
        loss = (a.float() + b.float()).sum()
        if kind in KINDS:
            loss.backward()
        else:
            optimizer.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            b[0] = step
    assert bool((a < 1).all()) and bool((b[1:] < 1).all())


@pytest.mark.parametrize("name", ["zero_2_bf16", "zero_1_fp16"])
@by_ranks(2)
def test_values_that_are_put_back_are_no_edit(comm: Any, name: str) -> None:
    want, engine = (make(comm, config_of(**RUNS[name])) for _ in range(2))
    for step in range(4):
        train(want, range(step, step + 1))
        train(engine, range(step, step + 1))
        kept = copy.deepcopy(engine.module.state_dict())
        in_place(engine.module)
        engine.module.load_state_dict(kept)
    assert same_bits(flat(engine.module), flat(want.module))


@by_ranks(2)
def test_what_is_written_is_saved(comm: Any, tmp_path: Any) -> None:
    engine = trained(comm, 2, **BF16)
    of_the_data(engine.module)
    engine.save_checkpoint(tmp_path)
    other, third = (make(comm, config_of(**BF16)) for _ in range(2))
    other.load_checkpoint(tmp_path)
    third.optimizer.load_state_dict(engine.optimizer.state_dict())
    for loaded in (other, third):
        assert bool((loaded.module.first.weight == HALF).all())


@by_ranks(1)
def test_inside_a_window_writing_is_refused(comm: Any) -> None:
    for once_more in (True, False):
        engine = make(comm, config_of(**BF16, gradient_accumulation_steps=2))
        engine.backward(loss_of(engine, comm.rank, 0))
        engine.step()
        if not once_more:
            engine.backward(loss_of(engine, comm.rank, 1))
        with torch.no_grad():
            engine.module.first.weight[-1, -1] += 1
        with pytest.raises(
            thinwire.FailedPrecondition, match="inside a window of accumulation"
        ):
            if once_more:
                engine.backward(loss_of(engine, comm.rank, 1))
            engine.step()


UNDER = optimizer_of("OneBitAdam", freeze_step=2)
UNDER |= {"thinwire": {"compressed_under_next_step": True}}


@pytest.mark.parametrize("config,phase", [(ZERO_ONE, "local"), (UNDER, "compressed")])
@by_ranks(2)
def test_between_exchanges_writing_is_refused(
    comm: Any, config: dict[str, Any], phase: str
) -> None:
    engine = make(comm, config_of(**config))
    step = 0
    while engine.report is None or engine.report.phase != phase:
        train(engine, range(step, step + 1))
        step += 1
    kept = copy.deepcopy(engine.module.state_dict())
    in_place(engine.module)
    with pytest.raises(thinwire.FailedPrecondition, match="between two exchanges"):
        engine.backward(loss_of(engine, comm.rank, step * 10))
    engine.module.load_state_dict(kept)
    with engine.evaluation():
        in_place(engine.module)
    train(engine, range(step, step + 8))
    assert (engine.module.first.weight - HALF).abs().max() < 0.2
    engine.load_module_state_dict(Net(seed=5).state_dict())
    with engine.evaluation():
        comm.require_same("parameters", str(flat(engine.module).sum().item()))


# ZeroOneAdam is in its local stage after 14 steps, with and without an exchange since.
STOPS = {
    "ZeroOneAdam": (6, 14, 15, 16),
    "LeanOnebitAdam": (2, 6),
    "OuterAdamW": (6, 7),
    "OnebitAdamUnder": (4, 6),
}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CASES = [*itertools.product(KINDS, DTYPES)]
CASES.remove(("LeanOnebitAdam", torch.float16))  # refused
Write = Callable[[torch.nn.Module], None]


@pytest.mark.parametrize("kind,dtype", CASES)
@pytest.mark.parametrize("write", WAYS)
@by_ranks(2)
def test_a_step_continues_from_written_values(
    comm: Any, kind: str, write: Write, dtype: torch.dtype
) -> None:
    for stop in STOPS.get(kind, (6,)):
        net, optimizer = cases.made(kind, comm, lr=1e-4, dtype=dtype)
        cases.train(net, optimizer, range(stop), comm.rank)
        write(net)
        for step in range(stop, stop + 3):
            cases.train(net, optimizer, [step], comm.rank)
            assert distance(net) < 0.05


@pytest.mark.parametrize("kind", ["AdamW", *DIFFER])
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


@pytest.mark.parametrize("kind", DIFFER)
@by_ranks(2)
def test_nothing_written_changes_nothing(comm: Any, kind: str) -> None:
    ends = []
    for touch in (False, True):
        net, optimizer = cases.made(kind, comm)
        for step in range(30):
            cases.train(net, optimizer, [step], comm.rank)
            if touch and comm.rank == 0:  # counted by autograd, the same values
                net.load_state_dict(net.state_dict())
        ends.append(cases.bits(net))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("kind", DIFFER)
@by_ranks(2)
def test_writes_that_leave_ranks_different_are_refused(comm: Any, kind: str) -> None:
    net, optimizer = cases.made(kind, comm)
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


@pytest.mark.parametrize("kind", DIFFER)
@pytest.mark.parametrize("is_first", [False, True])
@by_ranks(2)
def test_weights_loaded_before_or_after_the_state_are_no_edit(
    comm: Any, is_first: bool, kind: str
) -> None:
    net, optimizer = cases.made(kind, comm)
    cases.train(net, optimizer, range(14), comm.rank)
    assert optimizer._native.optimizer.steps_behind > 0
    weights, state = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    again, other = cases.made(kind, comm, seed=5)
    if is_first:
        again.load_state_dict(weights)
    other.load_state_dict(state)
    if not is_first:
        again.load_state_dict(weights)
    cases.train(net, optimizer, range(14, 18), comm.rank)
    cases.train(again, other, range(14, 18), comm.rank)
    assert cases.bits(again) == cases.bits(net)
    other.synchronize()
    comm.require_same("parameters", cases.bits(again))

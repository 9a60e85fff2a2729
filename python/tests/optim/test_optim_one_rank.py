# SPDX-License-Identifier: Apache-2.0
"""If one rank alone refuses something, the others learn of it at once; nobody hangs."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import pytest
import ranks
import thinwire
import torch
from local_ranks import by_ranks
from optim_cases import KINDS, loss_of, make, model, train
from thinwire import CommFailure, FailedPrecondition, InvalidArgument
from thinwire.comm import run_local_ranks

SECONDS = 20.0


def set_in_group(key: str, value: Any) -> Any:
    def spoil(optimizer: Any) -> None:
        optimizer.param_groups[0][key] = value

    return spoil


def remove_a_group(optimizer: Any) -> None:
    optimizer.param_groups.pop()


def scale_by_nan(optimizer: Any) -> None:
    optimizer.grad_scale = math.nan


BAD: dict[str, tuple[Any, str]] = {
    "lr": (set_in_group("lr", math.nan), "must be finite and >= 0, got nan"),
    "lr of text": (set_in_group("lr", "x"), "must be a number, got 'x'"),
    "weight_decay": (set_in_group("weight_decay", -1.0), "must be finite and >= 0"),
    "betas": (set_in_group("betas", (0.1, 0.1)), "betas.* cannot change"),
    "freeze_step": (set_in_group("freeze_step", 5), "freeze_step.* cannot change"),
    "no group": (remove_a_group, "there are 0 now"),
    "grad_scale": (scale_by_nan, "grad_scale must be finite and > 0, got nan"),
}


@pytest.mark.quick
@pytest.mark.parametrize("spoil,text", BAD.values(), ids=BAD)
@pytest.mark.parametrize("kind", KINDS)
def test_a_setting_that_one_rank_refuses_ends_the_step_of_all(
    kind: str, spoil: Any, text: str
) -> None:
    told = threading.Event()

    def body(comm: Any) -> None:
        net = model()
        optimizer = make(kind, net.parameters(), comm)
        train(net, optimizer, range(5), comm.rank)
        if comm.rank == 1:
            spoil(optimizer)
            with pytest.raises((InvalidArgument, FailedPrecondition, TypeError)) as own:
                train(net, optimizer, [5], comm.rank)
            own.match(text)
            assert told.wait(SECONDS)
        else:
            with pytest.raises(
                CommFailure, match=r"rank 1 gave up: step\(\): .*"
            ) as it:
                train(net, optimizer, range(5, 8), comm.rank)
            told.set()
            it.match(text)
            with pytest.raises(CommFailure):
                train(net, optimizer, [8], comm.rank)

    run_local_ranks(2, body)


@pytest.mark.quick
def test_it_reaches_those_who_wait_for_their_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks 2 and 3 wait for each other and for rank 0, not for rank 1."""
    monkeypatch.setenv("THINWIRE_RANKS_PER_HOST", "2")
    left, done = threading.Barrier(3), threading.Event()

    def body(comm: Any) -> None:
        net = model()
        optimizer = make("OnebitAdam", net.parameters(), comm, hierarchy="by_host")
        train(net, optimizer, range(6), comm.rank)
        if comm.rank == 1:
            optimizer.param_groups[0]["lr"] = math.nan
            with pytest.raises(InvalidArgument):
                train(net, optimizer, [6], comm.rank)
            assert done.wait(SECONDS)
            return
        begin = time.monotonic()
        with pytest.raises(CommFailure, match="must be finite and >= 0, got nan"):
            train(net, optimizer, [6], comm.rank)
        assert time.monotonic() - begin < SECONDS / 2
        left.wait(SECONDS / 2)
        done.set()

    run_local_ranks(4, body)


@pytest.mark.quick
@by_ranks(2)
def test_a_mask_that_every_rank_refuses_changes_nothing(comm: Any) -> None:
    net = model()
    optimizer = make("OnebitAdam", net.parameters(), comm)
    for first in (0, 6):  # an exact step, then a compressed one
        train(net, optimizer, range(first, first + 6), comm.rank)
        before = [p.detach().clone() for p in net.parameters()]
        steps = optimizer._made.optimizer.steps
        optimizer.param_groups[0]["exp_avg_mask"] = ["x"] * 4
        with pytest.raises(TypeError, match="must be tensors"):
            train(net, optimizer, [12], comm.rank)
        assert optimizer._made.optimizer.steps == steps
        assert all(map(torch.equal, net.parameters(), before))
        optimizer.param_groups[0]["exp_avg_mask"] = None


@pytest.mark.quick
@pytest.mark.parametrize("what", ["step", "module"])
@by_ranks(2)
def test_a_save_whose_argument_one_rank_refuses_fails_on_all(
    comm: Any, what: str, tmp_path: Any
) -> None:
    net = model()
    optimizer = make("AdamW", net.named_parameters(), comm)
    train(net, optimizer, range(2), comm.rank)
    bad: Any = {what: "x"} if comm.rank == 1 else {}
    with pytest.raises((InvalidArgument, AttributeError)) as caught:
        thinwire.save(tmp_path, optimizer, **bad)
    assert comm.rank == 1 or "rank 1 refused its arguments" in str(caught.value)
    thinwire.save(tmp_path, optimizer)
    if what == "module":
        with pytest.raises((InvalidArgument, AttributeError)):
            thinwire.resume(tmp_path, optimizer, **bad)
    assert thinwire.resume(tmp_path, optimizer) is not None
    train(net, optimizer, [2], comm.rank)


def refuse_on_rank_1() -> list[Any]:
    thinwire.init_distributed("gloo")
    net = model()
    optimizer = thinwire.AdamW(net.parameters(), lr=1e-2)
    rank = optimizer._comm.rank
    loss_of(net, rank, 0).backward()
    optimizer.step()
    if rank == 1:
        optimizer.param_groups[0]["lr"] = math.nan
    begin = time.monotonic()
    try:
        optimizer.step()
    except thinwire.Error as error:
        seconds = time.monotonic() - begin
        time.sleep(5 if rank == 1 else 0)
        return [str(error), seconds]
    return []


def test_processes_learn_of_it_within_seconds() -> None:
    first, second, third = ranks.results(3, __file__, "refuse_on_rank_1")
    for text, seconds in (first, third):
        assert "rank 1 gave up: step(): InvalidArgument: " in text and seconds < 4, text
    assert second[0].endswith("must be finite and >= 0, got nan")

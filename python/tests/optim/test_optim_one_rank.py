# SPDX-License-Identifier: Apache-2.0
"""If one rank alone refuses something, the others learn of it at once; nobody hangs."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import thinwire
from local_ranks import by_ranks
from optim_cases import KINDS, make, model, train
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
    "lr": (set_in_group("lr", math.nan), "lr must be finite and >= 0, got nan"),
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

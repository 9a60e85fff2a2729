# SPDX-License-Identifier: Apache-2.0
"""LeanOnebitAdam: phases, memory of the program, edits, states, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optim_cases as cases
import pytest
import thinwire
import torch
from local_ranks import by_ranks
from thinwire.comm import run_local_ranks

DTYPES = [torch.float32, torch.bfloat16]


def make(net: torch.nn.Module, comm: Any, **keywords: Any) -> thinwire.LeanOnebitAdam:
    return thinwire.LeanOnebitAdam(
        net.parameters(), lr=1e-2, freeze_step=4, process_group=comm, **keywords
    )


@pytest.mark.quick
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_it_trains_and_ranks_stay_equal(world: int, dtype: torch.dtype) -> None:
    def body(comm: Any) -> tuple[list[str], str]:
        net = cases.model(seed=comm.rank, dtype=dtype)
        optimizer = make(net, comm)
        phases = cases.train(net, optimizer, range(8), comm.rank)
        assert cases.are_in_a_row(net.parameters())
        optimizer.close()
        return phases, cases.bits(net)

    done = run_local_ranks(world, body)
    assert {bits for _, bits in done} == {done[0][1]}
    assert done[0][0] == ["exact"] * 4 + ["compressed"] * 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("at", [2, 6])
@pytest.mark.parametrize("way", ["state_dict", "checkpoint"])
def test_a_run_continues_with_the_same_bits(
    way: str, at: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    def body(comm: Any) -> tuple[str, str]:
        net = cases.model(dtype=dtype)
        optimizer = make(net, comm)
        cases.train(net, optimizer, range(at), comm.rank)
        other = cases.model(seed=1, dtype=dtype)
        resumed = make(other, comm)
        if way == "state_dict":
            other.load_state_dict(net.state_dict())
            resumed.load_state_dict(optimizer.state_dict())
        else:
            thinwire.save(tmp_path, optimizer)
            assert thinwire.resume(tmp_path, resumed) is not None
        for model, its in ((net, optimizer), (other, resumed)):
            cases.train(model, its, range(at, 9), comm.rank)
        return cases.bits(net), cases.bits(other)

    for whole, resumed in run_local_ranks(2, body):
        assert whole == resumed


@pytest.mark.parametrize("at", [2, 6])
def test_what_the_program_writes_counts(at: int) -> None:
    def body(comm: Any) -> list[float]:
        net = cases.model(dtype=torch.bfloat16)
        optimizer = make(net, comm)
        cases.train(net, optimizer, range(at), comm.rank)
        with torch.no_grad():
            net[0].bias.fill_(3.0)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        cases.train(net, optimizer, range(1), comm.rank)
        values: list[float] = net[0].bias.tolist()
        return values

    for values in run_local_ranks(2, body):
        assert values == [3.0] * 33


@pytest.mark.quick
@pytest.mark.parametrize(
    ("dtype", "keywords", "text"),
    [
        (torch.float16, {}, "float32 or bfloat16 with lean_onebit_adam"),
        (torch.float32, {"denominator_bits": 2}, "denominator_bits must be"),
    ],
)
@by_ranks(2)
def test_what_it_cannot_do_is_named(
    comm: Any, dtype: torch.dtype, keywords: dict[str, Any], text: str
) -> None:
    net = cases.model(dtype=dtype)
    with pytest.raises(thinwire.InvalidArgument, match=text):
        make(net, comm, **keywords)

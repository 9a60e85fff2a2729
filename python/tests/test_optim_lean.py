# SPDX-License-Identifier: Apache-2.0
"""LeanOnebitAdam: phases, memory of the program, edits, states, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optim_cases as cases
import pytest
import thinwire
import torch
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


@pytest.mark.quick
def test_before_the_freeze_it_is_adamw() -> None:
    def body(comm: Any) -> tuple[str, str]:
        lean, exact = cases.model(), cases.model()
        cases.train(lean, make(lean, comm), range(4), comm.rank)
        adamw = thinwire.AdamW(exact.parameters(), lr=1e-2, process_group=comm)
        cases.train(exact, adamw, range(4), comm.rank)
        return cases.bits(lean), cases.bits(exact)

    for lean, exact in run_local_ranks(2, body):
        assert lean == exact


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("at", [2, 6])
def test_a_state_goes_on_with_the_same_bits(at: int, dtype: torch.dtype) -> None:
    def body(comm: Any) -> tuple[str, str]:
        net = cases.model(dtype=dtype)
        optimizer = make(net, comm)
        cases.train(net, optimizer, range(at), comm.rank)
        other = cases.model(dtype=dtype)
        resumed = make(other, comm)
        other.load_state_dict(net.state_dict())
        resumed.load_state_dict(optimizer.state_dict())
        for model, its in ((net, optimizer), (other, resumed)):
            cases.train(model, its, range(at, 9), comm.rank)
        return cases.bits(net), cases.bits(other)

    for whole, resumed in run_local_ranks(2, body):
        assert whole == resumed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("at", [2, 6])
def test_a_checkpoint_goes_on(at: int, dtype: torch.dtype, tmp_path: Path) -> None:
    def body(comm: Any) -> tuple[str, str]:
        net = cases.model(dtype=dtype)
        optimizer = make(net, comm)
        cases.train(net, optimizer, range(at), comm.rank)
        thinwire.save(tmp_path, optimizer, extra={"step": at})
        other = cases.model(seed=1, dtype=dtype)
        resumed = make(other, comm)
        found = thinwire.resume(tmp_path, resumed)
        assert found is not None
        assert found.extra["step"] == at
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
def test_what_it_cannot_do_is_named(
    dtype: torch.dtype, keywords: dict[str, Any], text: str
) -> None:
    def body(comm: Any) -> None:
        net = cases.model(dtype=dtype)
        with pytest.raises(thinwire.InvalidArgument, match=text):
            make(net, comm, **keywords)

    run_local_ranks(2, body)


@pytest.mark.quick
def test_the_device_path_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THINWIRE_DEVICE_PATH", "torch")

    def body(comm: Any) -> None:
        with pytest.raises(thinwire.Unavailable, match="lean 1-bit Adam works for"):
            make(cases.model(), comm)
        for keywords in ({"hierarchy": "by_host"}, {"ranks_per_host": 2}):
            with pytest.raises(thinwire.Unavailable, match="on the CPU only"):
                thinwire.OnebitAdam(
                    cases.model().parameters(), process_group=comm, **keywords
                )

    run_local_ranks(2, body)

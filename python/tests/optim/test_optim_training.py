# SPDX-License-Identifier: Apache-2.0
"""Training loops: accumulation, compile, scaling."""

from __future__ import annotations

import warnings
from typing import Any

import optim_cases as cases
import pytest
import torch
from thinwire import _core
from thinwire.amp import GradScaler
from thinwire.comm import run_local_ranks
from thinwire.errors import FailedPrecondition

pytestmark = pytest.mark.quick


def ends(communicator: Any, forward: Any) -> str:
    """The parameters after 8 steps; forward(net, rank, step) makes gradients."""
    net, optimizer = cases.made("OnebitAdam", communicator)
    for step in range(8):
        optimizer.zero_grad()
        forward(net, communicator.rank, step)
        optimizer.step()
    return cases.bits(net)


def plainly(net: Any, rank: int, step: int) -> None:
    cases.loss_of(net, rank, step).backward()


def test_several_backwards_are_one_step() -> None:
    def in_parts(net: Any, rank: int, step: int) -> None:
        for _ in range(2):
            (cases.loss_of(net, rank, step) / 2).backward()

    one = run_local_ranks(2, lambda c: ends(c, plainly))
    assert one == run_local_ranks(2, lambda c: ends(c, in_parts)) and one[0] == one[1]


def test_a_compiled_model() -> None:
    def compiled(net: Any, rank: int, step: int) -> None:
        forward = torch.compile(net, backend="aot_eager")
        cases.loss_of(forward, rank, step).backward()

    alone = _core.local_group(1)[0]
    assert ends(alone, compiled) == ends(alone, plainly)


def test_a_compiled_step_is_left_as_it_is() -> None:
    net, optimizer = cases.made("OnebitAdam")

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.step()

    cases.loss_of(net, 0, 0).backward()
    step()
    assert optimizer.report is not None and optimizer.report.applied


def scaled(
    communicator: Any,
    scaler: Any,
    dtype: torch.dtype = torch.float32,
    kind: str = "OnebitAdam",
    unscale: bool = False,
    overflow: int = 5,
) -> tuple[str, list[float], list[bool]]:
    """Parameters, scales, and which steps were applied. One overflows on rank 1."""
    net, optimizer = cases.made(kind, communicator, dtype=dtype)
    scales, applied = [], []
    for step in range(8):
        optimizer.zero_grad()
        scaler.scale(cases.loss_of(net, communicator.rank, step)).backward()
        if step == overflow and communicator.rank == 1:
            net[0].weight.grad[0, 0] = float("inf")
        if unscale:
            scaler.unscale_(optimizer)
        before = cases.bits(net)
        scaler.step(optimizer)
        assert (cases.bits(net) == before) == (not optimizer.report.applied)
        scaler.update()
        scales.append(scaler.get_scale())
        applied.append(optimizer.report.applied)
    return cases.bits(net), scales, applied


def scaled_ranks(*given: Any, **options: Any) -> list[Any]:
    def body(communicator: Any) -> Any:
        scaler = GradScaler("cpu", init_scale=16.0)
        return scaled(communicator, scaler, *given, **options)

    return run_local_ranks(2, body)


@pytest.mark.parametrize("kind", ["OnebitAdam", "OuterAdamW"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_overflow_on_one_rank_is_one_of_all(dtype: torch.dtype, kind: str) -> None:
    one, two = scaled_ranks(dtype, kind)
    assert one == two
    assert one[1] == [16.0] * 5 + [8.0] * 3
    assert one[2] == [True] * 5 + [False] + [True] * 2


def test_a_scale_of_a_power_of_two_and_unscale_change_no_bit() -> None:
    assert scaled_ranks(unscale=True) == scaled_ranks()
    without = run_local_ranks(2, lambda c: ends(c, plainly))
    assert [bits for bits, _, _ in scaled_ranks(overflow=-1)] == without


def test_torchs_scaler_is_refused_on_every_rank() -> None:
    def body(communicator: Any) -> str:
        with pytest.raises(FailedPrecondition) as caught:
            scaled(communicator, torch.amp.GradScaler("cpu"))
        return str(caught.value)

    assert all("use thinwire.GradScaler" in text for text in run_local_ranks(2, body))


def test_one_rank_may_use_torchs_scaler() -> None:
    alone = _core.local_group(1)[0]
    _, _, applied = scaled(alone, torch.amp.GradScaler("cpu"))
    assert all(applied)


def test_our_scaler_works_where_nothing_is_said() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaler = GradScaler(init_scale=4.0)
    assert scaler.is_enabled() and scaler.scale(torch.ones(())) == 4


def test_our_scaler_leaves_other_optimizers_to_torch() -> None:
    net = cases.model()
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = GradScaler("cpu", init_scale=4.0)
    scaler.scale(cases.loss_of(net, 0, 0)).backward()
    before = cases.bits(net)
    scaler.step(optimizer)
    scaler.update()
    assert cases.bits(net) != before
    off = GradScaler("cpu", enabled=False)
    ours = cases.make("OnebitAdam", net.parameters())
    off.scale(cases.loss_of(net, 0, 0)).backward()
    off.step(ours)
    assert ours.report is not None and ours.report.applied

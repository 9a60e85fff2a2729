# SPDX-License-Identifier: Apache-2.0
"""Training loops: accumulation, compile, scaling."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import optim_cases as cases
import pytest
import thinwire
import torch
from local_ranks import by_ranks
from thinwire import _core, optim
from thinwire.amp import GradScaler
from thinwire.comm import run_local_ranks
from thinwire.errors import FailedPrecondition, InvalidArgument

pytestmark = pytest.mark.quick


def ends(comm: Any, forward: Any) -> str:
    """The parameters after 8 steps; forward(net, rank, step) makes gradients."""
    net, optimizer = cases.made("OnebitAdam", comm)
    for step in range(8):
        optimizer.zero_grad()
        forward(net, comm.rank, step)
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
    comm: Any,
    scaler: Any,
    dtype: torch.dtype = torch.float32,
    kind: str = "OnebitAdam",
    unscale: bool = False,
    overflow: int = 5,
) -> tuple[str, list[float], list[bool]]:
    """Parameters, scales, and which steps were applied. One overflows on rank 1."""
    net, optimizer = cases.made(kind, comm, dtype=dtype)
    scales, applied = [], []
    for step in range(8):
        optimizer.zero_grad()
        scaler.scale(cases.loss_of(net, comm.rank, step)).backward()
        if step == overflow and comm.rank == 1:
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
    def body(comm: Any) -> Any:
        scaler = GradScaler("cpu", init_scale=16.0)
        return scaled(comm, scaler, *given, **options)

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
    def body(comm: Any) -> str:
        with pytest.raises(FailedPrecondition) as caught:
            scaled(comm, torch.amp.GradScaler("cpu"))
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


OUTER: Any = {"sync_every": 3, "warmup_steps": 2}


def test_local_steps_send_nothing_and_the_log_says_what_travels(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO, "thinwire")

    def body(comm: Any) -> None:
        net = cases.model()
        optimizer = optim.OnebitAdam(
            net.parameters(),
            freeze_step=2,
            outer={"sync_every": 3},
            telemetry=str(tmp_path / "steps.jsonl"),
            process_group=comm,
        )
        cases.train(net, optimizer, range(5), comm.rank)

    run_local_ranks(2, body)
    lines = [json.loads(x) for x in (tmp_path / "steps.jsonl").read_text().splitlines()]
    # The first local step compares the ranks.
    sent = [line["bytes_sent"] > 0 for line in lines]
    assert sent == [True, True, True, False, True]
    for key in ("drift", "rho"):
        assert [key in line for line in lines] == [False, False, False, False, True]
    told = [text for text in caplog.messages if "what up to 3 local steps" in text]
    assert len(told) == 1


@pytest.mark.parametrize(
    "outer,error,text",
    [
        ({"sync_evry": 3}, TypeError, "'sync_evry'; did you mean 'sync_every'"),
        ({"momentum": 0.5}, InvalidArgument, "outer must have the key 'sync_every'"),
        ({"sync_every": 0}, InvalidArgument, r"outer\['sync_every'\] must be >= 1"),
        ({"sync_every": 2.5}, TypeError, r"outer\['sync_every'\] must be an integer"),
        (3, TypeError, "outer must be a dict or None, got 3"),
    ],
)
def test_bad_options_are_named(outer: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        optim.AdamW(cases.model().parameters(), outer=outer)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_sync_that_is_not_finite_is_refused_until_its_values_are(
    value: float,
) -> None:
    """The update of a step that fails is no external write."""
    outer = {"sync_every": 4}
    net, optimizer = cases.made("AdamW", dtype=torch.bfloat16, outer=outer)
    failed = []
    for step in range(13):
        if step == 6:
            net[0].bias.data[1] = value
        cases.loss_of(net, 0, step).backward()
        try:
            optimizer.step()
        except thinwire.NonFinite:
            failed.append(step)
        optimizer.zero_grad()
    assert len(failed) > 1 and failed == list(range(failed[0], 13))


def test_a_difference_of_rounding_is_no_write_between_local_steps() -> None:
    ends, local_steps = [], 0
    for written in (False, True):
        net, optimizer = cases.made("ZeroOneAdam")
        for step in range(16):
            if written and step > 0 and optimizer.report.phase == "local":
                local_steps += 1
                net[0].weight.data.view(torch.int32)[0, 0] += 1
            cases.loss_of(net, 0, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        ends.append(cases.bits(net))
    assert ends[0] == ends[1] and local_steps > 0


def test_optimizers_with_an_exchange_of_their_own_have_no_outer_loop() -> None:
    for kind in (optim.ZeroOneAdam, optim.OnebitLamb, optim.LeanOnebitAdam):
        with pytest.raises(TypeError, match="unexpected keyword argument 'outer'"):
            kind(cases.model().parameters(), outer=OUTER)


@by_ranks(2)
def test_initialize_wraps_any_optimizer_of_torch(comm: Any, tmp_path: Path) -> None:
    config = {
        "train_micro_batch_size_per_gpu": 5,
        "thinwire": {"outer": OUTER, "fallback": "off"},
    }

    def make(seed: int) -> Any:
        net = cases.model(seed=seed)
        sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        return thinwire.initialize(
            model=net, optimizer=sgd, config=config, process_group=comm
        )[0]

    def run(engine: Any, steps: range) -> list[str]:
        phases = []
        for step in steps:
            x, y = cases.batch(comm.rank, step)
            engine.backward(torch.nn.functional.mse_loss(engine(x), y))
            engine.step()
            phases.append(engine.report.phase)
        return phases

    engine = make(0)
    assert run(engine, range(6)) == [
        *("exact", "exact", "local", "local", "compressed", "local")
    ]
    engine.save_checkpoint(str(tmp_path))
    resumed = make(3)
    resumed.load_checkpoint(str(tmp_path))
    run(engine, range(6, 7))
    run(resumed, range(6, 7))
    assert cases.bits(resumed.module) == cases.bits(engine.module)


@by_ranks(2)
def test_between_syncs_all_ranks_write_the_same(comm: Any) -> None:
    net = cases.model()
    optimizer = optim.AdamW(net.parameters(), lr=1e-3, outer=OUTER, process_group=comm)
    cases.train(net, optimizer, range(3), comm.rank)
    before = cases.bits(net)
    with torch.no_grad():
        net[2].bias.fill_(5.0)
    with pytest.raises(FailedPrecondition, match="all of them on all ranks"):
        cases.train(net, optimizer, range(3, 4), comm.rank)
    net.load_state_dict(cases.model().state_dict())
    cases.train(net, optimizer, range(3, 4), comm.rank)
    assert cases.bits(net) != before

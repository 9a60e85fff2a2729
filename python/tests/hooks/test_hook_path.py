# SPDX-License-Identifier: Apache-2.0
"""Hooks that average where gradients are, with tensors of the CPU over gloo: their bytes, what
is refused, lost ranks, and what is left when they end."""

from __future__ import annotations

import datetime
import gc
import os
import signal
import threading
import time
from typing import Any
from unittest import mock

import hook_cases as cases
import ranks
import thinwire
import torch
import torch.distributed as dist
from thinwire.hooks import _path, _rows


def sends() -> dict[str, Any]:
    rank, _ = cases.join()
    ddp = cases.wrapped(cases.net())
    hook = thinwire.ddp_hook(ddp, path="device", exact_steps=1)
    assert hook.report is None
    for step in range(3):
        cases.loss_of(ddp, rank, step).backward()
    report = hook.report
    assert report is not None
    found = {
        "sent": report.bytes_sent,
        "ratio": report.residual_ratio,
        "finite": report.is_finite,
        "text": str(hook),
    }
    hook.close()
    dist.destroy_process_group()
    return found


def test_reports_and_bytes() -> None:
    sizes = [p.numel() for p in cases.net().parameters()]
    blocks = sum(-(-n // cases.BLOCK) for n in sizes)
    record = 4 + cases.BLOCK // 2
    announced = 2 * 2 * -(-blocks // 3) * record
    for own in ranks.results(3, __file__, "sends"):
        # Buckets have at most one block more for each rank than their share.
        assert announced <= own["sent"] <= announced + 2 * 2 * record * len(sizes)
        assert own["finite"] and 0 < own["ratio"] < 1
        assert f"3 ranks, {announced} bytes per backward" in own["text"]


def skips() -> dict[str, Any]:
    """Rank 1 overflows in the second of four steps, of one bucket."""
    rank, _ = cases.join()
    _rows._OF_A_CPU = 2  # several chunks in the bucket
    net = cases.net()
    ddp = cases.wrapped(net, bucket_cap_mb=25)
    hook = thinwire.ddp_hook(ddp, path="device")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    hook.watch(scaler)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    kept, finite, are_nan = [], [], []
    for step in range(4):
        optimizer.zero_grad()
        loss = scaler.scale(cases.loss_of(ddp, rank, step))
        (loss * float("inf") if step == 1 and rank == 1 else loss).backward()
        assert hook.report is not None
        finite.append(hook.report.is_finite)
        are_nan.append(all(bool(g.isnan().all()) for g in cases.gradients_of(net)))
        kept.append(hook.state_dict())
        scaler.step(optimizer)
        scaler.update()
    same = [
        torch.equal(kept[0][part][name], kept[1][part][name])
        for part in ("worker", "server")
        for name in kept[0][part]
    ]
    weights = float(sum(p.double().sum() for p in net.parameters()))
    hook.close()
    dist.destroy_process_group()
    return {"same": all(same), "finite": finite, "nan": are_nan, "weights": weights}


def test_a_skip_on_one_rank_is_one_on_all_and_keeps_residuals() -> None:
    one, two = ranks.results(2, __file__, "skips")
    assert one == two
    assert one["finite"] == [True, False, True, True] and one["same"]
    assert one["nan"] == [False, True, False, False]


def refusals() -> list[str]:
    """Returns what differs from what is expected."""
    rank, _ = cases.join()
    others: list[str] = []

    def refuse(text: str, **options: Any) -> None:
        ddp = cases.wrapped(cases.net())
        told = ranks.failure_of(lambda: thinwire.ddp_hook(ddp, **options))
        if text not in told:
            others.append(f"{text}: {told}")

    refuse("path must be auto, host or device, got 'gpu'", path="gpu")
    refuse("path must be auto or host with low_rank", path="device", low_rank=2)
    refuse("path or parameters must be the same", path="host" if rank else "device")
    comm = thinwire.comm.communicator_for(None)
    refuse(
        "got device: process_group is no group of torch.distributed",
        path="device",
        process_group=comm,
    )
    comm.close()
    with mock.patch.object(_path, "_tried", lambda _: "no bytes" if rank else ""):
        refuse("path must be auto or host, got device: no bytes", path="device")
    auto = thinwire.ddp_hook(cases.wrapped(cases.net()))
    assert auto.path == "host"
    auto.close()
    factors = thinwire.ddp_hook(cases.wrapped(cases.net()), low_rank=2)
    assert factors.path == "host"
    factors.close()
    dist.destroy_process_group()
    return others


def test_refusals_name_what_is_refused() -> None:
    assert ranks.results(2, __file__, "refusals") == [[], []]


def over_other_groups() -> list[Any]:
    """Groups that are not the world's: of two ranks of three, and a second one of these."""
    rank, _ = cases.join()
    some, again = (dist.new_group([0, 2]) for _ in range(2))
    found: list[Any] = []
    for other in (None, again):
        if rank == 1:
            continue
        ddp = cases.wrapped(cases.net(), process_group=some)
        hook = thinwire.ddp_hook(ddp, path="device", process_group=other)
        cases.loss_of(ddp, rank, 0).backward()
        sums = [float(g.double().sum()) for g in cases.gradients_of(ddp)]
        found.append([hook.path, *sums])
        hook.close()
    dist.barrier()
    dist.destroy_process_group()
    return found


def test_groups_of_some_ranks() -> None:
    one, none, two = ranks.results(3, __file__, "over_other_groups")
    assert none == [] and one == two and one[0] == one[1]
    assert one[0][0] == "device" and one[0][1] != 0


def loses_a_rank(kind: str) -> dict[str, Any]:
    rank, _ = cases.join()
    module, _hook = cases.hooked(kind)
    for step in range(4):
        if step == 2 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        text = ranks.failure_of(
            lambda k=step: cases.loss_of(module, rank, k).backward()
        )
        if text:
            seconds = time.monotonic() - begin
            return {"text": text, "step": step, "seconds": seconds}
    return {}


def test_a_lost_rank_is_named() -> None:
    found = ranks.call(3, __file__, "loses_a_rank", "ddp device", seconds=100)
    for rank in (0, 2):
        assert not found[rank].timed_out
        value = found[rank].value
        assert "rank 1 has left or died" in value["text"], value
        assert value["step"] == 2 and value["seconds"] < 20


def stands_still() -> tuple[str, float]:
    """Rank 1 stops in a backward in which ranks compare nothing before the exchange."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
    rank, processes = dist.get_rank(), [0, 0]
    dist.all_gather_object(processes, os.getpid())
    module, _hook = cases.hooked("ddp device")
    for step in range(6):
        if step == 5 and rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        begin = time.monotonic()
        text = ranks.failure_of(
            lambda k=step: cases.loss_of(module, rank, k).backward()
        )
        if text:
            break
    seconds = time.monotonic() - begin
    os.kill(processes[1], signal.SIGKILL)
    return text, seconds


def test_a_rank_that_stands_still_is_named_after_the_time_out() -> None:
    found = ranks.call(2, __file__, "stands_still", seconds=60)
    text, seconds = found[0].value
    assert "timed out waiting for rank 1" in text
    assert seconds < 25  # twice the time-out, on a busy machine


def without_a_scale() -> tuple[str, float]:
    rank, _ = cases.join()
    ddp, hook = cases.hooked("ddp device")
    cases.loss_of(ddp, rank, 0).backward()
    hook.watch(cases.BrokenScaler())
    begin = time.monotonic()
    told = ranks.failure_of(lambda: cases.loss_of(ddp, rank, 0).backward())
    return told, time.monotonic() - begin


def test_what_one_rank_refuses_the_others_hear_at_once() -> None:
    for heard, seconds in ranks.results(2, __file__, "without_a_scale"):
        assert "no scale here" in heard
        assert seconds < 20


def many(count: int) -> dict[str, Any]:
    """Hooks made and dropped, and the last two at once."""
    from torch.distributed import distributed_c10d as c10d

    rank, _ = cases.join()
    seen, began = [], threading.active_count()
    for _ in range(count):
        ddp, hook = cases.hooked("ddp device")
        cases.loss_of(ddp, rank, 0).backward()
        del ddp, hook
        gc.collect()
        # The other rank may still end its own.
        dist.barrier()
        seen.append(len(c10d._world.pg_map))
    end = time.monotonic() + 10
    while time.monotonic() < end and threading.active_count() > began + 1:
        time.sleep(0.01)
    left = threading.active_count() - began
    first, one = cases.hooked("ddp device")
    second, two = cases.hooked("ddp device")
    for step in range(3):
        loss = cases.loss_of(first, rank, step) + cases.loss_of(second, rank, step)
        dist.all_reduce(torch.ones(3))
        loss.backward()
    sums = [float(g.double().sum()) for g in cases.gradients_of(first)]
    same = all(map(torch.equal, *map(cases.gradients_of, (first, second))))
    one.close()
    two.close()
    dist.destroy_process_group()
    return {"groups": seen, "left": left, "sums": sums, "same": same}


def test_a_hundred_hooks_leave_nothing() -> None:
    one, two = ranks.results(2, __file__, "many", 100, seconds=300)
    assert one["sums"] == two["sums"] and one["same"] and two["same"]
    for found in (one, two):
        # torch's store or Thinwire's may keep one thread for the world.
        assert found["left"] <= 1
        # torch keeps the groups of one hook, which all use.
        assert len(set(found["groups"][2:])) == 1, found["groups"]

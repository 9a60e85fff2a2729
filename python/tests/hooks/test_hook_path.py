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
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import hook_cases as cases
import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from thinwire.comm.device_groups import DeviceGroups
from thinwire.hooks import _path, _rows

KINDS = ["ddp device", pytest.param("fsdp device", marks=cases.needs_fsdp)]


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
    module, hook = cases.hooked(kind)

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    for step in range(4):
        if step == 2 and rank == 1:
            if kind == "ddp device":
                die()
            # During FSDP2's own all-gathers nobody would name the rank.
            hook._average = die
        begin = time.monotonic()
        text = ranks.failure_of(
            lambda k=step: cases.loss_of(module, rank, k).backward()
        )
        if text:
            seconds = time.monotonic() - begin
            return {"text": text, "step": step, "seconds": seconds}
    return {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_rank_is_named(kind: str) -> None:
    found = ranks.call(3, __file__, "loses_a_rank", kind, seconds=100)
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


def closes_during_an_exchange(reason: str) -> str:
    """Rank 1 ends an exchange in which it waits for rank 2, and then joins the others in
    naming a rank. The exchange itself fails on rank 1 if `reason` is "", without close().
    Returns this rank's error."""
    rank, size = cases.join()
    comm = thinwire.comm.communicator_for(None)
    hosts = [[k] for k in range(size)]
    world = dist.group.WORLD
    groups = DeviceGroups(comm, world, torch.device("cpu"), "gloo", hosts)
    store, given = world.get_group_store(), torch.zeros(size)

    def exchange() -> None:
        with groups.waiting():
            store.set(f"waits {rank}", "")
            if rank == 1 and not reason:
                raise RuntimeError("out of memory")
            dist.all_to_all_single(torch.empty(size), given, group=groups.between)

    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(ranks.failure_of(exchange)))
    if rank == 2:
        store.wait(["waits 0", "waits 1", "ended"])
    thread.start()
    if rank == 1:
        # wait() would keep the store from the thread.
        while not store.check(["waits 0", "waits 1"]):
            time.sleep(0.01)
        if reason:
            groups.close()
        store.set("ended", "")
    thread.join()
    comm.close()
    return said[0]


@pytest.mark.parametrize(
    "reason, heard",
    [
        ("closed", "rank 1 gave up: its hook was closed during an exchange"),
        ("", "; on rank 1: out of memory"),
    ],
)
def test_a_rank_that_ends_an_exchange_is_named(reason: str, heard: str) -> None:
    said = ranks.results(3, __file__, "closes_during_an_exchange", reason)
    assert heard in said[0] and heard in said[2], said
    assert heard.removeprefix("rank 1") in said[1]


def raises_in_backward(kind: str) -> tuple[str, float]:
    """Rank 1 raises in the second backward, with buckets in flight, and ends."""
    rank, _ = cases.join()
    module, _hook = cases.hooked(kind)
    cases.loss_of(module, rank, 0).backward()

    def fail(_: torch.Tensor) -> None:
        raise ValueError("no gradient here")

    inner = next(m for name, m in module.named_modules() if name.endswith("first"))
    inner.register_forward_hook(
        lambda *given: given[-1].register_hook(fail) and None if rank == 1 else None
    )
    loss = cases.loss_of(module, rank, 1)
    if rank == 1:
        loss.backward()
    begin = time.monotonic()
    return ranks.failure_of(loss.backward), time.monotonic() - begin


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_raises_in_backward_is_named(kind: str) -> None:
    found = ranks.call(3, __file__, "raises_in_backward", kind, seconds=60)
    for rank in (0, 2):
        text, seconds = found[rank].value
        assert "rank 1 gave up: ValueError: no gradient here" in text, text
        assert seconds < 20


WARM = 10
"""Hooks before those that are counted."""


def objects() -> Counter[str]:
    """How many objects of each of Thinwire's classes the garbage collector knows."""
    gc.collect()
    names = (f"{type(one).__module__}.{type(one).__name__}" for one in gc.get_objects())
    return Counter(name for name in names if name.startswith("thinwire."))


def traced_bytes() -> int:
    """What lines of Thinwire have allocated in Python and still hold."""
    own = tracemalloc.Filter(True, f"{Path(thinwire.__file__).parent}/*")
    return sum(t.size for t in tracemalloc.take_snapshot().filter_traces([own]).traces)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def many(count: int) -> dict[str, Any]:
    """Hooks made and dropped, and the last two at once."""
    from torch.distributed import distributed_c10d as c10d

    rank, _ = cases.join()
    seen, began = [], threading.active_count()
    for k in range(count + WARM):
        if k == WARM:
            before, resident = objects(), resident_bytes()
            tracemalloc.start()
        ddp = cases.wrapped(torch.nn.Linear(512, 512))
        hook = thinwire.ddp_hook(ddp, path="device")
        ddp(torch.ones(2, 512) + rank).sum().backward()
        del ddp, hook
        gc.collect()
        # The other rank may still end its own.
        dist.barrier()
        seen.append(len(c10d._world.pg_map))
    end = time.monotonic() + 10
    while time.monotonic() < end and threading.active_count() > began + 1:
        time.sleep(0.01)
    left = threading.active_count() - began
    more = objects()
    more.subtract(before)
    memory = {
        "objects": [name for name, number in more.items() if number > 0],
        "traced": traced_bytes(),
        "resident": resident_bytes() - resident,
    }
    tracemalloc.stop()
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
    return {"groups": seen, "left": left, "sums": sums, "same": same, **memory}


def test_a_hundred_hooks_leave_nothing() -> None:
    one, two = ranks.results(2, __file__, "many", 100, seconds=300)
    assert one["sums"] == two["sums"] and one["same"] and two["same"]
    for found in (one, two):
        # torch's store or Thinwire's may keep one thread for the world.
        assert found["left"] <= 1
        # torch keeps the groups of one hook, which all use.
        assert len(set(found["groups"][2:])) == 1, found["groups"]

# SPDX-License-Identifier: Apache-2.0
"""Hooks that average on the device: the bits of the CPU's host path, no copy of a bucket, and
that each wait is needed."""

from __future__ import annotations

import logging
import os
import signal
import time
from datetime import timedelta
from itertools import chain
from typing import Any

import devices
import pytest
import ranks
import torch
from mutants import Mutants, mutate

RUNS: list[dict[str, Any]] = [
    {},
    {"bits": 8},
    {"dtype": "bfloat16"},
    {"dtype": "float16", "scale": 64.0},
    {"strided": True},
    {"residual_dtype": "bfloat16"},
    {"bucket_cap_mb": 25},
]
"""Options of runs, all in the same processes."""


def made(
    place: torch.device,
    path: str,
    dtype: str = "float32",
    strided: bool = False,
    scale: float = 1.0,
    bits: int = 4,
    residual_dtype: str = "float32",
    bucket_cap_mb: float = 0.004,
) -> tuple[Any, Any]:
    """A wrapped model on the device, and its hook."""
    import hook_cases as cases
    import thinwire
    from thinwire.hooks import _rows

    if bits == 4:
        _rows._OF_A_DEVICE = 2  # several chunks in a bucket
    net = cases.net(getattr(torch, dtype))
    if strided:
        net = cases.strided(net)
    ddp = cases.wrapped(net.to(place), bucket_cap_mb=bucket_cap_mb)
    hook = thinwire.ddp_hook(
        ddp,
        bits,
        residual_dtype=getattr(torch, residual_dtype),
        path=path,  # type: ignore[arg-type]
    )
    hook.set_loss_scale(scale)
    return ddp, hook


def loss_of(module: Any, place: torch.device, rank: int, step: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(10 * step + rank)
    dtype = next(module.parameters()).dtype
    x = torch.randn(5, 7, generator=random).to(place, dtype)
    return module(x).square().mean()


def train(where: str, path: str) -> list[Any]:
    """Gradients and residuals of all runs."""
    import hook_cases as cases
    import torch.distributed as dist

    place = devices.begin(where)
    rank = dist.get_rank()
    found = []
    for options in RUNS:
        ddp, hook = made(place, path, **options)
        scale = options.get("scale", 1.0)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01 / scale)
        for step in range(4):
            optimizer.zero_grad()
            (loss_of(ddp, place, rank, step) * scale).backward()
            found += [g.cpu().flatten().tolist() for g in cases.gradients_of(ddp)]
            optimizer.step()
        for part in ("worker", "server"):
            kept = hook.state_dict()[part].values()
            found += [residual.flatten().tolist() for residual in kept]
        assert hook.report is not None and hook.report.is_finite
        wants = "device" if path == "device" or where != "cpu" else "host"
        assert hook.path == (wants if dist.get_world_size() > 1 else "host")
        hook.close()
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize(("n", "hosts"), [(1, 1), (2, 1), (3, 1), (4, 2)])
def test_a_device_averages_as_the_host_of_a_cpu(n: int, hosts: int) -> None:
    env = {"THINWIRE_RANKS_PER_HOST": str(n // hosts)} if hosts > 1 else {}
    expected = devices.run(n, __file__, "train", "cpu", "host", **env)
    found = devices.run(n, __file__, "train", "device", "auto", **env)
    assert devices.alike(found, expected)


def train_shards(where: str) -> list[Any]:
    """Gradients of FSDP2's shards, residuals, and what the backwards copied to the host."""
    import hook_cases as cases
    import thinwire
    import torch.distributed as dist

    place = devices.begin(where)
    rank, found = dist.get_rank(), []
    for bits, dtype in ((4, torch.float32), (8, torch.bfloat16)):
        fsdp = cases.sharded(cases.net(dtype).to(place), kind=place.type)
        hook = thinwire.fsdp_hook(fsdp, bits)
        assert hook.path == ("host" if where == "cpu" else "device")
        for step in range(3):
            fsdp.zero_grad()
            loss = loss_of(fsdp, place, rank, step)
            before = devices.counts().get("async_copies")
            loss.backward()
            assert devices.counts().get("async_copies") == before
            gradients = [p.grad.to_local() for p in fsdp.parameters()]
            found += [g.cpu().flatten().tolist() for g in gradients]
        kept = hook.state_dict()["worker"].values()
        found += [residual.flatten().tolist() for residual in kept]
        hook.close()
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("n", [2, 3])
def test_a_device_averages_shards_as_the_host_of_a_cpu(n: int) -> None:
    hook_cases = pytest.importorskip("hook_cases")
    if not hook_cases.has_fsdp:
        pytest.skip("needs torch 2.13")
    expected = devices.run(n, __file__, "train_shards", "cpu")
    found = devices.run(n, __file__, "train_shards", "device")
    assert devices.alike(found, expected)


def without_bytes() -> list[str]:
    """The paths that "auto" takes if an exchange on the device fails on rank 1, and for
    other reasons."""
    from unittest import mock

    import hook_cases as cases
    import thinwire
    import torch.distributed as dist
    from thinwire.hooks import _path

    place = devices.begin("device")
    rank, lines = dist.get_rank(), devices.told(logging.INFO)
    found = []

    def note(**options: Any) -> None:
        hook = thinwire.ddp_hook(cases.wrapped(cases.net().to(place)), **options)
        found.append(hook.path)
        hook.close()

    with mock.patch.object(_path, "_tried", lambda _: "no bytes" if rank else ""):
        note()
    note(low_rank=1)
    note(path="host")
    note()
    said = [line for line in lines if "averaged in host memory" in line]
    dist.destroy_process_group()
    return [*found, *said]


@pytest.mark.skipif(
    not devices.IS_FENCE, reason="it needs a backend that exchanges bytes"
)
def test_auto_takes_the_device_if_it_can() -> None:
    first, second = devices.run(2, __file__, "without_bytes")
    assert second == ["host", "host", "host", "device"] == first[:4]
    assert first[4].endswith("averaged in host memory: no bytes")
    assert "low_rank averages factors in host memory" in first[5]


def loses_a_rank(kind: str) -> dict[str, Any]:
    import hook_cases as cases
    import thinwire
    import torch.distributed as dist

    place = devices.begin("device")
    rank = dist.get_rank()
    if kind == "ddp":
        module, hook = made(place, "device")
    else:
        module = cases.sharded(cases.net().to(place), kind=place.type)
        hook = thinwire.fsdp_hook(module, path="device")

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    for step in range(4):
        if step == 2 and rank == 1:
            if kind == "ddp":
                die()
            # During FSDP2's own all-gathers nobody would name the rank.
            hook._average = die
        begin = time.monotonic()

        def one(step: int = step) -> None:
            loss_of(module, place, rank, step).backward()
            torch.accelerator.synchronize()

        if text := ranks.failure_of(one):
            seconds = time.monotonic() - begin
            return {"text": text, "step": step, "seconds": seconds}
    return {}


@pytest.mark.skipif(not devices.IS_FENCE, reason="NCCL ends the process itself")
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_lost_rank_is_named(kind: str) -> None:
    hook_cases = pytest.importorskip("hook_cases")
    if kind == "fsdp" and not hook_cases.has_fsdp:
        pytest.skip("needs torch 2.13")
    devices.require()
    found = ranks.call(3, __file__, "loses_a_rank", kind, seconds=100)
    for rank in (0, 2):
        assert not found[rank].timed_out
        value = found[rank].value
        assert "rank 1 has left or died" in value["text"], value
        assert value["step"] == 2 and value["seconds"] < 20


def counted(path: str) -> dict[str, Any]:
    """What 6 backwards do after 3, in one bucket and in several."""
    import torch.distributed as dist
    from device_uses import counting

    place = devices.begin("device")
    rank, found = dist.get_rank(), {}
    for cap in (25, 0.004):
        ddp, hook = made(place, path, bucket_cap_mb=cap)
        x = torch.randn(5, 7).to(place)

        def backwards(count: int, ddp: Any = ddp, x: Any = x) -> None:
            for _ in range(count):
                ddp.zero_grad()
                ddp(x).square().mean().backward()

        backwards(3)
        torch.accelerator.synchronize()
        with counting(place) as used:
            backwards(6)
        found[str(cap)] = used
        hook.close()
        del ddp, hook
    dist.destroy_process_group()
    assert rank >= 0
    return found


@pytest.mark.skipif(not devices.IS_FENCE, reason="the test device counts")
def test_no_bucket_is_copied_to_the_host() -> None:
    for found in devices.run(2, __file__, "counted", "device"):
        one, several = found["25"], found["0.004"]
        assert one["host_waits"] == several["host_waits"], found
        for used in found.values():
            assert used["async_copies"] == used["unpinned_async"] == 0, found
            # The last backward's norm is read, to notice another loss scale.
            assert used["host_waits"] <= 6, found
    for found in devices.run(2, __file__, "counted", "host"):
        assert all(used["async_copies"] >= 12 for used in found.values()), found


MUTANTS: Mutants = {
    "thinwire/hooks/_device_average.py": {
        "a bucket is encoded before it is there": (
            "            self._stream.wait_event(event)\n",
            "            pass\n",
        ),
        "a copy of a bucket is freed too early": (
            "        values.record_stream(self._stream)\n"
        ),
    },
    "thinwire/hooks/_exchange.py": {
        "records are read before they have arrived": (
            "            self._work.wait()\n",
            "            pass\n",
        ),
    },
    "thinwire/hooks/_ddp.py": {
        "backward continues before the averages are there": (
            "            with self._average.running():\n",
            "            if True:\n",
        ),
    },
}


def one_mutant(name: str) -> list[Any]:
    """The error of this rank, or the gradients' sums."""
    mutate(MUTANTS, name)
    import hook_cases as cases
    import thinwire
    import torch.distributed as dist

    place = devices.device()
    # DDP itself waits for a rank that has ended.
    limit = timedelta(seconds=15)
    thinwire.init_distributed(devices.backends(), timeout=limit, verbose=False)
    rank, found = dist.get_rank(), []
    try:
        for strided in (False, True):
            ddp, hook = made(place, "device", strided=strided)
            for step in range(4):
                ddp.zero_grad()
                loss_of(ddp, place, rank, step).backward()
                torch.empty(1000, device=place).fill_(1e9)  # where something was
                sums = [g.double().sum().item() for g in cases.gradients_of(ddp)]
                found += sums
            hook.state_dict()
            hook.close()
        torch.accelerator.synchronize()
    except Exception as error:  # noqa: BLE001  whatever shows it
        return [str(error)[:500]]
    return found


@pytest.mark.skipif(not devices.IS_FENCE, reason="races are seen by the test device")
@pytest.mark.parametrize("name", ["", *chain(*MUTANTS.values())])
def test_every_wait_of_a_hook_is_needed(name: str) -> None:
    found = devices.run(2, __file__, "one_mutant", name)
    is_seen = len(set(map(str, found))) > 1 or len(found[0]) == 1 or "nan" in str(found)
    assert is_seen == (name != ""), found

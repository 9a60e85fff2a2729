#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the averages on a device on one GPU, in at most six minutes.

    python tests/device/gpu_check.py                  # the device that torch finds
    python tests/device/gpu_check.py --device cpu --elements 65536    # tests this file

Compares the codec's bits with the CPU's, times it, and compares both hooks on two ranks
with the CPU. It prints one line of JSON per figure, and ends with 1 if bits differ or a
part fails. It needs the installed wheel and no network.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

BITS = (4, 8)
LIMIT_SECONDS = 330.0
RANKS = 2
SHAPES = ((331, 64), (331,), (64, 331), (64,))


def say(figure: str, **values: Any) -> None:
    print(json.dumps({"figure": figure, **values}), flush=True)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all bits are equal, except that each NaN is like any other."""
    one, other = one.cpu(), other.cpu()
    if not one.is_floating_point():
        return torch.equal(one, other)
    bits = [
        x.nan_to_num(0.0, torch.inf, -torch.inf).view(torch.int32) for x in (one, other)
    ]
    return torch.equal(*bits) and torch.equal(one.isnan(), other.isnan())


def blocks() -> dict[str, torch.Tensor]:
    """Blocks of random, extreme, denormal and non-finite values."""
    random = torch.Generator().manual_seed(1)
    normal = torch.randn(256, 1024, generator=random)
    exponents = torch.randint(-149, 127, (256, 1024), generator=random)
    not_finite = normal.clone()
    for row, value in enumerate((torch.nan, torch.inf, -torch.inf)):
        not_finite[row, 7 * row] = value
    return {
        "normal": normal,
        "all exponents": torch.ldexp(normal, exponents),
        "denormal": normal * 1e-41,
        "large": normal * 1e37,
        "zero": torch.zeros(4, 1024),
        "not finite": not_finite,
        "halves": (normal * 7).round() / 2,
        "short": normal[:, :77],
    }


def codec_bits(device: torch.device) -> bool:
    """Compares records, errors and means with those of the CPU."""
    from thinwire.hooks._codec import average, decode, encode

    all_same = True
    for name, given in blocks().items():
        for bits in BITS:
            found = []
            for where in (torch.device("cpu"), device):
                records, error = encode(given.to(where, copy=True), bits)
                whole = torch.stack([records, records.flip(0), records])
                width = given.shape[1]
                values = decode(records, width, bits)
                found.append([records, error, values, average(whole, width, bits)])
            parts = ("records", "errors", "values", "means")
            others = [
                p for p, a, b in zip(parts, *found, strict=True) if not same(a, b)
            ]
            say("codec bits", blocks=name, bits=bits, same=not others, differ=others)
            all_same = all_same and not others
    return all_same


def milliseconds(call: Callable[[], Any], device: torch.device) -> float:
    """The least of five times, each until the device is done."""

    def wait() -> None:
        if device.type != "cpu":
            torch.accelerator.synchronize()

    times = []
    for _ in range(6):
        wait()
        begin = time.perf_counter()
        call()
        wait()
        times.append(1000 * (time.perf_counter() - begin))
    return min(times[1:])


def codec_times(device: torch.device, elements: int) -> None:
    from thinwire.hooks._codec import BLOCK, decode, encode

    rows = torch.randn(-(-elements // BLOCK), BLOCK, device=device)
    for bits in BITS:
        # encode() writes to what it gets, whose values stay of one size.
        records, _ = encode(rows.clone(), bits)
        given = rows.clone()
        for name, call in (
            ("encode", lambda b=bits, g=given: encode(g, b)),
            ("decode", lambda b=bits, r=records: decode(r, BLOCK, b)),
        ):
            spent = milliseconds(call, device)
            rate = rows.numel() / spent * 1e-6
            say(name, bits=bits, elements=rows.numel(), ms=spent, gelements_per_s=rate)


class Given(torch.nn.Module):
    """Its gradients are what forward() gets, so that no device rounds them."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(map(torch.zeros, SHAPES))

    def forward(self, *gradients: torch.Tensor) -> torch.Tensor:
        pairs = zip(self.weights, gradients, strict=True)
        return torch.stack([(w * g).sum() for w, g in pairs]).sum()


def averaged(wrapped: Any, place: torch.device, rank: int) -> list[torch.Tensor]:
    """Returns this rank's averages of three backwards."""
    found = []
    for step in range(3):
        random = torch.Generator().manual_seed(100 * step + rank)
        given = [torch.randn(shape, generator=random).to(place) for shape in SHAPES]
        wrapped.zero_grad()
        wrapped(*given).backward()
        own = [parameter.grad for parameter in wrapped.parameters()]
        found += [getattr(g, "to_local", g.clone)().cpu() for g in own]
    return found


def hooked(kind: str, bits: int, place: torch.device, path: Any) -> tuple[Any, Any]:
    """Returns a wrapped module and its hook."""
    import thinwire
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    module = Given().to(place)
    if kind == "ddp_hook":
        ddp = DistributedDataParallel(module, bucket_cap_mb=0.05)
        return ddp, thinwire.ddp_hook(ddp, bits, path=path)
    fsdp: Any = fully_shard(module, mesh=init_device_mesh(place.type, (RANKS,)))
    return fsdp, thinwire.fsdp_hook(fsdp, bits, path=path)


def one_rank(
    rank: int, where: str, backend: str, path: str, port: int, to: str
) -> None:
    """Writes the averages of both hooks, or the error."""
    # NCCL wants a GPU for each rank of a host, so each rank says that it has its own.
    os.environ["NCCL_HOSTID"] = str(rank)
    place, found = torch.device(where), dict[str, Any]()
    try:
        dist.init_process_group(
            backend,
            f"tcp://127.0.0.1:{port}",
            rank=rank,
            world_size=RANKS,
            timeout=timedelta(seconds=60),
        )
        for kind in ("ddp_hook", "fsdp_hook"):
            for bits in BITS:
                begin = time.perf_counter()
                wrapped, hook = hooked(kind, bits, place, path)
                assert hook.path == path
                results = averaged(wrapped, place, rank)
                results += hook.state_dict()["worker"].values()
                hook.close()
                found[f"{kind} {bits}"] = time.perf_counter() - begin, results
    except Exception as error:  # noqa: BLE001  the other process prints it
        found["error"] = f"{type(error).__name__}: {error}"[:500]
    torch.save(found, f"{to}/{rank}")
    # After a failure NCCL may hang in its own end.
    os._exit(0)


def on_two_ranks(where: str, backend: str, path: str, seconds: float) -> list[Any]:
    """Returns what each rank has found, with an "error" if it failed or was too slow."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as to:
        given = where, backend, path, port, to
        ranks = [spawn.Process(target=one_rank, args=(k, *given)) for k in range(RANKS)]
        for process in ranks:
            process.start()
        end = time.monotonic() + seconds
        for process in ranks:
            process.join(max(0.0, end - time.monotonic()))
            process.kill()
            process.join()
        return [
            torch.load(f"{to}/{k}")
            if os.path.exists(f"{to}/{k}")
            else {"error": "late"}
            for k in range(RANKS)
        ]


def hook_bits(device: torch.device, seconds: float) -> bool:
    """Compares averages and residuals of two ranks on the device with the CPU's host path."""
    own = dist.get_default_backend_for_device(device)
    backends = dict.fromkeys(f"cpu:gloo,{device.type}:{name}" for name in (own, "gloo"))
    if device.type == "cpu":
        backends = {"gloo": None}
    expected = on_two_ranks("cpu", "gloo", "host", seconds / 4)
    for backend in backends:
        found = on_two_ranks(str(device), backend, "device", seconds / 4)
        errors = [one["error"] for one in (*expected, *found) if "error" in one]
        if errors:
            say("hooks", backend=backend, errors=errors)
            continue
        all_same = True
        for name, (spent, _) in found[0].items():
            pairs = [
                zip(a[name][1], b[name][1], strict=True)
                for a, b in zip(found, expected, strict=True)
            ]
            equal = all(same(a, b) for pair in pairs for a, b in pair)
            hook, bits = name.split()
            say(hook, backend=backend, bits=int(bits), same=equal, seconds=spent)
            all_same = all_same and equal
        return all_same
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--device", help="such as cuda; default: the one that torch finds"
    )
    parser.add_argument(
        "--elements", type=int, default=100_000_000, help="of the codec's times"
    )
    arguments = parser.parse_args()
    began = time.monotonic()
    name = arguments.device
    if name is None and not torch.accelerator.is_available():
        parser.error("torch finds no device; --device cpu tests this file")
    device = torch.device(name or torch.accelerator.current_accelerator().type)
    import thinwire

    versions = {"torch": torch.__version__, "thinwire": thinwire.__version__}
    kind = torch.cuda.get_device_name() if device.type == "cuda" else device.type
    say("machine", device=kind, **versions)
    are_same = codec_bits(device)
    codec_times(device, arguments.elements)
    left = LIMIT_SECONDS - (time.monotonic() - began)
    are_same = hook_bits(device, left) and are_same
    say("end", same=are_same, seconds=time.monotonic() - began)
    return 0 if are_same else 1


if __name__ == "__main__":
    sys.exit(main())

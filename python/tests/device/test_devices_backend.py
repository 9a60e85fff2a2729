# SPDX-License-Identifier: Apache-2.0
"""init_process_group("thinwire") with tensors on a device: the bits of the CPU."""

from __future__ import annotations

from typing import Any

import devices
import torch
import torch.distributed as dist

LONG = 1 << 16


def sums(where: str) -> list[Any]:
    """Sums of kept tensors, and of one part, of values that every device has."""
    place = torch.device("cpu") if where == "cpu" else devices.device()
    import thinwire.backend  # noqa: F401  after the device is known

    dist.init_process_group("thinwire")
    rank, size = dist.get_rank(), dist.get_world_size()
    kept = torch.empty(LONG + 3, device=place)
    parts, part = (
        torch.empty(LONG, device=place),
        torch.empty(LONG // size, device=place),
    )
    found: list[Any] = []
    for step in range(4):
        random = torch.Generator().manual_seed(10 * step + rank)
        kept.copy_(torch.randn(LONG + 3, generator=random))
        parts.copy_(torch.randn(LONG, generator=random))
        short = kept[:1000].clone()
        work = dist.all_reduce(kept, async_op=True)
        assert work is not None
        work.wait()
        dist.reduce_scatter_tensor(part, parts, op=dist.ReduceOp.AVG)
        dist.all_reduce(short)
        for values in (kept, part, short):
            found.append([float(x).hex() for x in values[:5000].cpu()])
    dist.destroy_process_group()
    return found


def test_sums_have_the_bits_of_the_cpu() -> None:
    beneath = {"THINWIRE_BACKEND": devices.backends().replace("None", "gloo")}
    expected = devices.run(2, __file__, "sums", "cpu")
    found = devices.run(2, __file__, "sums", "device", **beneath)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == theirs

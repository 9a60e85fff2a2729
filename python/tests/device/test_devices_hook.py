# SPDX-License-Identifier: Apache-2.0
"""thinwire.ddp_hook in host memory for a model on a device: the bits of the CPU."""

from __future__ import annotations

from typing import Any

import devices
import torch


def train(where: str) -> list[Any]:
    import hook_cases as cases
    import thinwire
    import torch.distributed as dist

    place = devices.begin(where)
    rank = dist.get_rank()
    net = cases.net().to(place)
    ddp = cases.wrapped(net)
    hook = thinwire.ddp_hook(ddp, 4, exact_steps=1, path="host")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    gradients = []
    for step in range(4):
        optimizer.zero_grad()
        random = torch.Generator().manual_seed(10 * step + rank)
        x = torch.randn(5, 7, generator=random).to(place)
        ddp(x).square().mean().backward()
        gradients += [g.cpu().flatten().tolist() for g in cases.gradients_of(net)]
        optimizer.step()
    assert hook.report is not None and hook.report.is_finite
    hook.close()
    dist.destroy_process_group()
    return gradients


def test_a_hook_averages_as_on_the_cpu() -> None:
    expected = devices.run(2, __file__, "train", "cpu")
    found = devices.run(2, __file__, "train", "device")
    assert devices.alike(found, expected)
    assert found[0] == found[1]

# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes over gloo, with DistributedDataParallel around the model."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import ranks


def train(wrapped: str) -> dict[str, Any]:
    import optim_cases as cases
    import torch.distributed as dist
    from thinwire.comm import local_gradients
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = cases.model(seed=rank)
    if wrapped == "before":
        ddp = DistributedDataParallel(net)
        local_gradients(ddp)
        optimizer = cases.make("OnebitAdam", ddp.parameters())
    elif wrapped == "without the helper":
        ddp = DistributedDataParallel(net)
        optimizer = cases.make("OnebitAdam", ddp.parameters())
    else:
        optimizer = cases.make("OnebitAdam", net.parameters())
        ddp = net
        if wrapped == "after":
            ddp = DistributedDataParallel(net)
            local_gradients(ddp)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        phases = cases.train(ddp, optimizer, range(8), rank)
    told = [str(w.message) for w in caught if "local_gradients" in str(w.message)]
    result = {"bits": cases.bits(net), "phase": phases[-1], "told": len(told)}
    assert optimizer.report is not None
    result["bytes"] = optimizer.report.bytes_sent
    dist.destroy_process_group()
    optimizer.close()
    return result


@pytest.fixture(scope="module")
def plain() -> list[Any]:
    return [
        rank.value for rank in ranks.succeed(ranks.call(2, __file__, "train", "no"))
    ]


@pytest.mark.parametrize("wrapped", ["before", "after"])
def test_a_wrapper_of_ddp_changes_no_bit(wrapped: str, plain: list[Any]) -> None:
    found = [r.value for r in ranks.succeed(ranks.call(2, __file__, "train", wrapped))]
    assert found == plain
    assert found[0] == found[1] and found[0]["phase"] == "compressed"


def test_a_forgotten_helper_is_told_once() -> None:
    found = ranks.succeed(ranks.call(2, __file__, "train", "without the helper"))
    one, two = (rank.value for rank in found)
    assert one["bits"] == two["bits"] and (one["told"], two["told"]) == (1, 0)

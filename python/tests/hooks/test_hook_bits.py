# SPDX-License-Identifier: Apache-2.0
"""thinwire.ddp_hook: the bits of plain loops, whatever DDP does with its buckets."""

from __future__ import annotations

import copy
import os
from contextlib import nullcontext
from typing import Any

import hook_cases as cases
import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist

STEPS = 4
# Options of DDP, of Case, and the dtype of the model.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one bucket": {"ddp": {"bucket_cap_mb": 25}},
    "views": {"ddp": {"gradient_as_bucket_view": True, "static_graph": True}},
    "unused": {"ddp": {"find_unused_parameters": True}, "leaves_out": True},
    "accumulated": {"backwards": 3},
    "scaled": {"scale": 4096.0},
    "bfloat16": {"dtype": "bfloat16", "scale": 2.0},
    "float16": {"dtype": "float16", "scale": 64.0},
}


def train(runs: list[tuple[int, str]]) -> list[dict[str, Any]]:
    """All of them in the same processes, because starting those takes the longest."""
    rank, size = cases.join()
    results = [compare(rank, size, *run) for run in runs]
    dist.destroy_process_group()
    return results


def compare(rank: int, size: int, bits: int, name: str) -> dict[str, Any]:
    """Steps of SGD with the hook, and the same on plain loops, compared after each."""
    case = CASES[name]
    scale = case.get("scale", 1.0)
    net = cases.net(getattr(torch, case.get("dtype", "float32")))
    plain = copy.deepcopy(net)
    ddp = cases.wrapped(net, **case.get("ddp", {}))
    hook = thinwire.ddp_hook(ddp, bits)
    hook.set_loss_scale(scale)
    each = int(os.environ.get("THINWIRE_RANKS_PER_HOST", "1"))
    naive = cases.Naive(plain.parameters(), size // each, bits)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (net, plain)]
    backwards, equal = case.get("backwards", 1), []

    def losses(module: torch.nn.Module, of_rank: int, step: int) -> Any:
        for part in range(backwards):
            given = {}
            if case.get("leaves_out"):
                # Nobody in step 2, and rank 0 alone in step 3.
                given["uses_aside"] = step < 2 or (step == 3 and of_rank == 0)
            loss = cases.loss_of(module, of_rank, 10 * step + part, **given)
            yield loss * scale

    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for last in range(backwards):
            with nullcontext() if last == backwards - 1 else ddp.no_sync():
                for part, loss in enumerate(losses(ddp, rank, step)):
                    if part == last:
                        loss.backward()
        every = []
        for other in range(size):
            plain.zero_grad()
            for loss in losses(plain, other, step):
                loss.backward()
            every.append(cases.gradients_of(plain))
        for unit, (own, want) in enumerate(
            zip(net.parameters(), plain.parameters(), strict=True)
        ):
            means = [
                sum((g[unit] for g in every[k + 1 : k + each]), every[k][unit]) / each
                for k in range(0, size, each)
            ]
            want.grad = naive.average(unit, means, scale)
            if own.grad is None:
                want.grad = None  # DDP gives none to what no rank has used
            else:
                equal.append(torch.equal(own.grad, want.grad))
                own.grad /= scale
                want.grad /= scale
        for optimizer in optimizers:
            optimizer.step()
    state = hook.state_dict()
    for unit, key in enumerate(state["server"]):
        equal.append(torch.equal(state["server"][key].flatten(), naive.server[unit]))
        for other in range(size // each):
            kept = state["worker"][key][other].flatten()
            equal.append(torch.equal(kept, naive.worker[other][unit]))
    result = {"equal": equal, "text": str(hook)}
    hook.close()
    return result


def require_equal(n: int, runs: list[tuple[int, str]], **env: str) -> list[str]:
    """Returns what the hook of the first run says of itself on each rank."""
    ends = ranks.results(n, __file__, "train", runs, seconds=100, env=env)
    for found in ends:
        for run, result in zip(runs, found, strict=True):
            assert all(result["equal"]), run
    return [found[0]["text"] for found in ends]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_bits_of_plain_loops(n: int) -> None:
    require_equal(n, [(4, "plain"), (8, "plain")])


def test_bits_with_options_scales_and_dtypes() -> None:
    require_equal(3, [(4, name) for name in CASES if name != "plain"])


def test_bits_by_host() -> None:
    """Two hosts of two ranks: the hosts' means are what is exchanged."""
    for text in require_equal(4, [(4, "plain")], THINWIRE_RANKS_PER_HOST="2"):
        assert "4 ranks on 2 hosts" in text

# SPDX-License-Identifier: Apache-2.0
"""thinwire.ddp_hook and fsdp_hook: the bits of plain loops, whatever the wrapper does."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import hook_cases as cases
import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from thinwire.hooks import _rows

STEPS = 4
# Options of DDP, loss scale, backwards of a step, and the dtype of the model.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "strided": {"strided": True},
    "one bucket": {"ddp": {"bucket_cap_mb": 25}},
    "views": {"ddp": {"gradient_as_bucket_view": True, "static_graph": True}},
    "unused": {"ddp": {"find_unused_parameters": True}, "leaves_out": True},
    "accumulated": {"backwards": 3, "scale": 4096.0},
    "scaled": {"scale": 4096.0},
    "bfloat16": {"dtype": "bfloat16", "scale": 2.0},
    "float16": {"dtype": "float16", "scale": 64.0},
}
CASES_OF_FSDP = CASES | {"repacked": {"repacked": True}}
OF_FSDP = {2: ("unused", "accumulated", "bfloat16", "repacked"), 3: ("bfloat16",)}
"""By the number of ranks."""


class Naive(cases.Naive):
    """The mean of all ranks' gradients, shard by shard and block by block."""

    def blocks(self, size: torch.Size) -> Iterator[slice]:
        for rank in range(self.ranks):
            shard = cases.chunk(size, rank, self.ranks)
            for begin in range(shard.start, shard.stop, cases.BLOCK):
                yield slice(begin, min(begin + cases.BLOCK, shard.stop))

    def average(
        self, unit: int, gradients: Sequence[torch.Tensor], scale: float = 1
    ) -> torch.Tensor:
        first = gradients[0]
        if self.ranks == 1:
            return first
        result = torch.empty(first.numel())
        for part in self.blocks(first.shape):
            result[part] = self.mean(unit, part, gradients, scale) * scale
        return result.view_as(first).to(first.dtype)


def train(runs: list[tuple[str, int, str]]) -> list[dict[str, Any]]:
    """All of them in the same processes, because starting those takes the longest."""
    rank, size = cases.join()
    results = [compare(rank, size, *run) for run in runs]
    dist.destroy_process_group()
    return results


def compare(rank: int, size: int, kind: str, bits: int, name: str) -> dict[str, Any]:
    """Gradients of the hook and of plain loops, compared in each step. SGD steps the plain
    model, from which values are copied: torch rounds bf16 otherwise in a part of it.
    `kind` is "ddp" or "fsdp", or "ddp device" for that path."""
    wrapper, _, path = kind.partition(" ")
    case, is_ddp = CASES_OF_FSDP[name], wrapper == "ddp"
    way = {"path": path or "host"}
    if bits == 4:
        _rows._OF_A_CPU = 2  # several chunks in a bucket
    scale, backwards = case.get("scale", 1.0), case.get("backwards", 1)
    net = cases.net(getattr(torch, case.get("dtype", "float32")))
    if case.get("strided"):
        net = cases.strided(net)
    plain = copy.deepcopy(net)
    each = int(os.environ.get("THINWIRE_RANKS_PER_HOST", "1"))
    parameters, hosts = list(plain.parameters()), size // each
    wrapped: Any
    naive: cases.Naive
    if is_ddp:
        wrapped = cases.wrapped(net, **case.get("ddp", {}))
        hook, naive = (
            thinwire.ddp_hook(wrapped, bits, **way),
            cases.Naive(parameters, hosts, bits),
        )
    else:
        wrapped = cases.sharded(net)
        if case.get("repacked"):
            wrapped = cases.repacked(wrapped)
        hook, naive = (
            thinwire.fsdp_hook(wrapped, bits, **way),
            Naive(parameters, hosts, bits),
        )
    assert hook.path == (path if size > 1 and path else "host")
    hook.set_loss_scale(scale)
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    equal, sent = [], getattr(hook, "bytes_sent", 0)

    def loss(
        module: torch.nn.Module, of_rank: int, step: int, part: int
    ) -> torch.Tensor:
        given = {}
        if case.get("leaves_out"):
            # Nobody in step 2, and rank 0 alone in step 3.
            given["uses_aside"] = step < 2 or (step == 3 and of_rank == 0)
        return scale * cases.loss_of(module, of_rank, 10 * step + part, **given)

    def part_of(whole: torch.Tensor) -> torch.Tensor:
        flat = whole.detach().flatten()
        return flat if is_ddp else flat[cases.chunk(whole.shape, rank, size)]

    def local(own: Any) -> torch.Tensor:
        return own.flatten() if is_ddp else own.to_local().flatten()

    for step in range(STEPS):
        wrapped.zero_grad()
        for part in range(backwards):
            is_last = part == backwards - 1
            if not is_ddp:
                wrapped.set_requires_gradient_sync(is_last)
            with wrapped.no_sync() if is_ddp and not is_last else nullcontext():
                loss(wrapped, rank, step, part).backward()
        every = []
        for other in range(size):
            plain.zero_grad()
            for part in range(backwards):
                loss(plain, other, step, part).backward()
            every.append(cases.gradients_of(plain))
        pairs = list(zip(wrapped.parameters(), parameters, strict=True))
        for unit, (own, want) in enumerate(pairs):
            means = [
                sum((g[unit] for g in every[k + 1 : k + each]), every[k][unit]) / each
                for k in range(0, size, each)
            ]
            want.grad = naive.average(unit, means, scale)
            if own.grad is None:
                want.grad = None  # DDP gives none to what no rank has used
            else:
                equal.append(torch.equal(local(own.grad), part_of(want.grad)))
                want.grad /= scale
        optimizer.step()
        with torch.no_grad():
            for own, want in pairs:
                values = own if is_ddp else own.to_local()
                values.copy_(part_of(want).view_as(values))
    if not is_ddp:
        announced = int(str(hook).split()[4])
        equal.append(hook.bytes_sent - sent == STEPS * announced)
    state = hook.state_dict()
    for unit, kept in enumerate(state["worker"].values()):
        for other in range(hosts):
            equal.append(torch.equal(kept[other].flatten(), naive.worker[other][unit]))
    for unit, kept in enumerate(state.get("server", {}).values()):
        equal.append(torch.equal(kept.flatten(), naive.server[unit]))
    result = {"equal": equal, "text": str(hook)}
    hook.close()
    return result


def require_equal(n: int, runs: list[tuple[str, int, str]], **env: str) -> list[str]:
    """Returns what the hook of the first run says of itself on each rank."""
    ends = ranks.results(n, __file__, "train", runs, seconds=100, env=env)
    for found in ends:
        for run, result in zip(runs, found, strict=True):
            assert all(result["equal"]), run
    return [found[0]["text"] for found in ends]


PATHS = ("", " device")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_bits_of_plain_loops(n: int, path: str) -> None:
    runs = [(f"ddp{path}", bits, "plain") for bits in (4, 8)]
    for text in require_equal(n, runs):
        assert text.endswith(", on the device)") == (n > 1 and path != "")


@cases.needs_fsdp
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_bits_of_plain_loops_with_shards(n: int, path: str) -> None:
    runs = [(f"fsdp{path}", bits, "plain") for bits in (4, 8)]
    require_equal(n, runs + [(f"fsdp{path}", 4, name) for name in OF_FSDP.get(n, ())])


@pytest.mark.parametrize("path", PATHS)
def test_bits_with_options_scales_and_dtypes(path: str) -> None:
    require_equal(3, [(f"ddp{path}", 4, name) for name in CASES if name != "plain"])


@pytest.mark.parametrize("path", PATHS)
def test_bits_of_a_hierarchical_hook(path: str) -> None:
    """Two hosts of two ranks: the hosts' means are what is exchanged."""
    runs = [(f"ddp{path}", 4, name) for name in ("plain", "strided", "scaled")]
    for text in require_equal(4, runs, THINWIRE_RANKS_PER_HOST="2"):
        assert "4 ranks on 2 hosts" in text

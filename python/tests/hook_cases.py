# SPDX-License-Identifier: Apache-2.0
"""A model for the tests of hooks, and the arithmetic of the hook as plain loops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from unittest import mock

import pytest
import thinwire
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as groups
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
BLOCK = 1024


class Net(torch.nn.Module):
    """Parameters of odd sizes, one of several blocks. `aside` is used on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(7, 331)
        self.aside = torch.nn.Linear(331, 3)
        self.second = torch.nn.Linear(331, 1)

    def forward(self, x: torch.Tensor, uses_aside: bool = True) -> torch.Tensor:
        hidden = self.first(x).tanh()
        out = self.second(hidden)
        return out + self.aside(hidden).sum(1, keepdim=True) if uses_aside else out


def net(dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(5)
    return Net().to(dtype)


def strided(module: Any) -> Any:
    """Returns `module`, with a parameter that is not in the order of its indices."""
    weight = module.first.weight
    weight.data = weight.detach().t().contiguous().t()
    return module


def wrapped(module: torch.nn.Module, **options: Any) -> DistributedDataParallel:
    """In buckets of a few kilobytes, which DDP rebuilds after the first backward."""
    return DistributedDataParallel(module, **{"bucket_cap_mb": 0.004, **options})


has_fsdp = hasattr(FSDPModule, "set_reduce_scatter_unused_params")
needs_fsdp = pytest.mark.skipif(
    not has_fsdp,
    reason="needs torch 2.13",
)


def sharded(module: Any, kind: str = "cpu", **options: Any) -> Any:
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    fully_shard(module.first, mesh=mesh, **options)
    return fully_shard(module, mesh=mesh, **options)


class Repacked(groups.FSDPParamGroup):
    """Stands in for the group of torch 2.15: parameters have the policies, and the buffer
    has its own order, here from the last parameter to the first.
    """

    def _init_mp_dtypes(self) -> None:
        self.mp_policy = self.fsdp_params[0].mp_policy
        super()._init_mp_dtypes()
        del self.mp_policy

    def post_backward(self, *unused: Any) -> None:
        reduce = groups.foreach_reduce

        def reversed_reduce(params: list[Any], gradients: list[Any], *rest: Any) -> Any:
            gradients.reverse()
            return reduce(params[::-1], gradients, *rest)

        with mock.patch.object(groups, "foreach_reduce", reversed_reduce):
            super().post_backward(*unused)


def param_groups(fsdp: Any) -> list[Any]:
    found = [m for m in fsdp.modules() if isinstance(m, FSDPModule)]
    return [group for m in found for group in m._get_fsdp_state()._fsdp_param_groups]


def repacked(fsdp: Any, has_order: bool = True) -> Any:
    """Returns the module, with groups of Repacked; without `has_order` they do not say
    that they are reversed.
    """
    for group in param_groups(fsdp):
        policy = group.__dict__.pop("mp_policy")
        for one in group.fsdp_params:
            one.mp_policy = policy
        if has_order:
            order = range(len(group.fsdp_params))
            group._reduce_scatter_param_indices = [*reversed(order)]
        group.__class__ = Repacked
    return fsdp


def chunk(size: torch.Size, rank: int, ranks_now: int) -> slice:
    """The elements of a parameter of which this rank has the shard."""
    rows, width = -(-size[0] // ranks_now), size[1:].numel()
    return slice(*(min(size[0], rows * r) * width for r in (rank, rank + 1)))


def loss_of(
    module: torch.nn.Module, rank: int, step: int, **arguments: Any
) -> torch.Tensor:
    random = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(5, 7, generator=random).to(next(module.parameters()).dtype)
    return (module(x, **arguments) - x.sum(1, keepdim=True).sin()).square().mean()


def quantized(c: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and step of one block."""
    levels = 2 ** (bits - 1) - 1
    step = c.abs().max() / levels
    if step == 0:
        return torch.zeros_like(c), step
    return (c / step).round().clamp(-levels, levels), step


class Naive:
    """The average of all ranks' gradients, parameter by parameter and block by block."""

    def __init__(self, parameters: Iterable[torch.Tensor], ranks: int, bits: int):
        sizes = [p.numel() for p in parameters]
        self.bits, self.ranks = bits, ranks
        self.worker = [[torch.zeros(n) for n in sizes] for _ in range(ranks)]
        self.server = [torch.zeros(n) for n in sizes]

    def mean(
        self, unit: int, part: slice, gradients: Sequence[torch.Tensor], scale: float
    ) -> torch.Tensor:
        """The mean of what the ranks send of one block."""
        mean = torch.zeros(gradients[0].flatten()[part].numel())
        for rank, gradient in enumerate(gradients):
            error = self.worker[rank][unit]
            c = gradient.flatten()[part].float() * (1 / scale) + error[part]
            q, step = quantized(c, self.bits)
            error[part] = c - q * step
            mean += q * (step * torch.tensor(1 / self.ranks))
        return mean

    def average(
        self, unit: int, gradients: Sequence[torch.Tensor], scale: float = 1
    ) -> torch.Tensor:
        if self.ranks == 1:
            return gradients[0]
        result = torch.empty(gradients[0].numel())
        for begin in range(0, result.numel(), BLOCK):
            part = slice(begin, begin + BLOCK)
            c = self.mean(unit, part, gradients, scale) + self.server[unit][part]
            q, step = quantized(c, self.bits)
            self.server[unit][part] = c - q * step
            result[part] = q * step * scale
        return result.view_as(gradients[0]).to(gradients[0].dtype)


def gradients_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """0 where there is none, as DDP counts it."""
    return [
        torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for p in module.parameters()
    ]


class BrokenScaler:
    """A scaler that has no scale on rank 1."""

    def is_enabled(self) -> bool:
        return True

    def get_scale(self) -> float:
        if dist.get_rank() == 1:
            raise ValueError("no scale here")
        return 2.0


def join() -> tuple[int, int]:
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def hooked(kind: str = "ddp") -> tuple[Any, Any]:
    """A wrapper of DDP or FSDP, and its hook. "low rank 2" has 2 first steps, and
    "ddp device" averages on that path."""
    way = {"path": "device" if kind.endswith(" device") else "auto"}
    if not kind.startswith("fsdp"):
        ddp = wrapped(strided(net()) if kind == "strided" else net())
        if kind.startswith("low rank"):
            return ddp, thinwire.ddp_hook(ddp, low_rank=1, first_steps=int(kind[9:]))
        return ddp, thinwire.ddp_hook(ddp, **way)
    fsdp = sharded(net())
    return fsdp, thinwire.fsdp_hook(fsdp, 4, **way)

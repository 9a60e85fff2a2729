# SPDX-License-Identifier: Apache-2.0
"""Tiny models for the tests of optimizers, with other data on every rank."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from thinwire import optim, seeded

torch.set_num_threads(1)

# Low-bit ones are exact for 4 steps; ZeroOneAdam ends in local steps.
KINDS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "AdamW": (optim.AdamW, {}),
    "Lamb": (optim.Lamb, {}),
    "AdamWInBits": (optim.AdamW, {"bits": 4}),
    "AdamWLowRank": (optim.AdamW, {"low_rank": 2, "first_steps": 4}),
    "OnebitAdam": (optim.OnebitAdam, {"freeze_step": 4}),
    "OnebitAdamUnder": (
        optim.OnebitAdam,
        {"freeze_step": 4, "compressed_under_next_step": True},
    ),
    "OnebitLamb": (optim.OnebitLamb, {"freeze_step": 4}),
    "ZeroOneAdam": (
        optim.ZeroOneAdam,
        {"var_freeze_step": 8, "var_update_scaler": 1, "local_step_scaler": 2},
    ),
    "LeanOnebitAdam": (optim.LeanOnebitAdam, {"freeze_step": 4}),
    "OuterAdamW": (
        optim.AdamW,
        {"outer": {"sync_every": 3, "warmup_steps": 4, "momentum": 0.3}},
    ),
    "OuterOnebitAdam": (
        optim.OnebitAdam,
        {"freeze_step": 4, "outer": {"sync_every": 3}},
    ),
}


def model(seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    with seeded(seed):  # ranks are threads, and torch's generator is one for all
        made = torch.nn.Sequential(
            torch.nn.Linear(7, 33), torch.nn.Tanh(), torch.nn.Linear(33, 1)
        )
    return made.to(dtype)


def make(kind: str, params: Any, comm: Any = None, **keywords: Any) -> optim._Optimizer:
    made, usual = KINDS[kind]
    arguments: dict[str, Any] = {"lr": 1e-2, "weight_decay": 1e-2, **usual, **keywords}
    return made(params, process_group=comm, **arguments)


def made(
    kind: str,
    comm: Any = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    named: bool = False,
    **keywords: Any,
) -> tuple[torch.nn.Module, Any]:
    """A model and its optimizer."""
    net = model(seed, dtype)
    params = net.named_parameters() if named else net.parameters()
    return net, make(kind, params, comm, **keywords)


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(5, 7, generator=random)
    return x, x.sum(1, keepdim=True).sin()


def loss_of(net: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    x, y = batch(rank, step)
    dtype = next(net.parameters()).dtype
    return torch.nn.functional.mse_loss(net(x.to(dtype)), y.to(dtype))


def train(
    net: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: Iterable[int],
    rank: int = 0,
    after: Callable[[], object] = lambda: None,
) -> list[str]:
    """Returns the phase of each step."""
    phases = []
    for step in steps:
        optimizer.zero_grad()
        loss_of(net, rank, step).backward()
        optimizer.step()
        after()
        phases.append(optimizer.report.phase)  # type: ignore[attr-defined]
    return phases


def bits(net: torch.nn.Module | Iterable[torch.Tensor]) -> str:
    """A digest of all parameters."""
    found = net.parameters() if isinstance(net, torch.nn.Module) else net
    digest = hashlib.sha256()
    for tensor in found:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:12]


def are_in_a_row(parameters: Iterable[torch.Tensor]) -> bool:
    """Each begins where the one before ends: they are parts of one array."""
    ends = [(p.data_ptr(), p.data_ptr() + p.nbytes) for p in parameters]
    return all(one[1] == other[0] for one, other in itertools.pairwise(ends))

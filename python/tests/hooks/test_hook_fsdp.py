# SPDX-License-Identifier: Apache-2.0
"""thinwire.fsdp_hook: mixed precision, and what is refused."""

from __future__ import annotations

from typing import Any

import hook_cases as cases
import ranks
import thinwire
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

pytestmark = cases.needs_fsdp


def reduced_in_float32() -> bool:
    """Parameters in bf16 for the model and in fp32 for the optimizer."""
    rank, _ = cases.join()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    fsdp = cases.sharded(cases.net(), mp_policy=policy)
    hook = thinwire.fsdp_hook(fsdp)
    cases.loss_of(fsdp, rank, 0).backward()
    exact = cases.sharded(cases.net(), mp_policy=policy)
    cases.loss_of(exact, rank, 0).backward()
    near = [
        torch.allclose(a.grad.to_local(), b.grad.to_local(), atol=0.02)
        and a.grad.dtype == torch.float32
        for a, b in zip(fsdp.parameters(), exact.parameters(), strict=True)
    ]
    hook.close()
    dist.destroy_process_group()
    return all(near)


def test_mixed_precision_reduces_in_float32() -> None:
    assert ranks.results(2, __file__, "reduced_in_float32") == [True, True]


def read_only_in_backward() -> str:
    """In torch 2.15 a gradient's dtype is that of the buffer, which no policy tells."""
    rank, _ = cases.join()
    fsdp = cases.sharded(cases.net())
    hook = thinwire.fsdp_hook(fsdp)
    for group in cases.param_groups(fsdp):
        group.mp_policy = MixedPrecisionPolicy(reduce_dtype=torch.float16)
    said = ranks.failure_of(cases.loss_of(fsdp, rank, 0).backward)
    hook.close()
    dist.destroy_process_group()
    return said


def test_a_dtype_is_read_from_the_buffer() -> None:
    for said in ranks.results(2, __file__, "read_only_in_backward"):
        assert "in float32 or bfloat16, got torch.float16 for" in said


UNKNOWN = "run with torch 2.13 and 2.14.1, does not know the FSDP2 of"


def unknown_orders() -> list[str]:
    """Returns what fsdp_hook() says of orders that it does not know, and at the end what
    backward() says of one that FSDP2 does not tell."""
    rank, _ = cases.join()
    said = []
    for order in ([0, 0, 1, 2], [1], [[0], [1]], "10", [0, 4], 3):
        fsdp = cases.repacked(cases.sharded(cases.net()))
        group = fsdp._get_fsdp_state()._fsdp_param_groups[0]
        group._reduce_scatter_param_indices = order
        said.append(ranks.failure_of(lambda one=fsdp: thinwire.fsdp_hook(one)))
        comms = [
            type(g._reduce_scatter_comm).__name__ for g in cases.param_groups(fsdp)
        ]
        assert comms == ["DefaultReduceScatter"] * 2
    mixed = cases.repacked(cases.sharded(cases.net()))
    last = mixed._get_fsdp_state()._fsdp_param_groups[0].fsdp_params[-1]
    last.mp_policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    said.append(ranks.failure_of(lambda: thinwire.fsdp_hook(mixed)))
    moved = cases.repacked(cases.sharded(cases.net()), has_order=False)
    thinwire.fsdp_hook(moved)
    for step in (0, 1):
        loss = cases.loss_of(moved, rank, step)
        said.append(ranks.failure_of(loss.backward))
    dist.destroy_process_group()
    return said


def test_unknown_orders_are_refused() -> None:
    for said in ranks.results(2, __file__, "unknown_orders"):
        *orders, mixed, first, second = said
        assert all(
            f"FailedPrecondition: fsdp_hook(), which was {UNKNOWN}" in one
            for one in orders
        )
        assert "of 'module' must be reduced in one dtype, got torch." in mixed
        assert UNKNOWN in first and "has moved '" in first
        assert "closed" in second


class Own:
    """A reduce-scatter of the program's."""


def refusals() -> list[str]:
    """Returns what differs from what is expected."""
    rank, size = cases.join()
    others: list[str] = []

    def told(text: str, body: Any) -> None:
        found = ranks.failure_of(body)
        if text not in found:
            others.append(f"{text}: {found}")

    def refused(text: str, module: Any, *bits: Any, **more: Any) -> None:
        told(text, lambda: thinwire.fsdp_hook(module, *bits, **more))

    fsdp = cases.sharded(cases.net())
    no_module = "TypeError: module must be an FSDPModule (fully_shard()), got Net"
    refused(no_module, cases.net())
    refused("bits must be 4 or 8, got 3", fsdp, 8 if rank == 0 else 3)
    refused("InvalidArgument: ", fsdp, 4 + 4 * rank)
    dtypes = "residual_dtype must be float32 or bfloat16"
    refused(dtypes, fsdp, residual_dtype=torch.float16)
    narrow = "reduced in float32 or bfloat16, got torch.float16 for 'aside.weight'"
    refused(narrow, cases.sharded(cases.net(torch.float16)))
    mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("hosts", "ranks"))
    two = fully_shard(cases.net(), mesh=mesh)
    refused("over a mesh of one dimension, got 2", two)
    custom = cases.sharded(cases.net())
    custom.set_custom_reduce_scatter(Own())
    refused("a reduce-scatter of its own already, Own", custom)
    hook = thinwire.fsdp_hook(fsdp)
    refused("a reduce-scatter of its own already, _ReduceScatter", fsdp)
    state = hook.state_dict()
    if rank == 0:
        del state["worker"]["second.bias"]
    told("'second.bias' is only in module", lambda: hook.load_state_dict(state))
    huge = hook.state_dict()
    name, values = next(iter(huge["worker"].items()))
    huge["worker"][name] = values.double() + 1e300
    infinite = "the state's 'worker' has values not finite"
    told(infinite, lambda: hook.load_state_dict(huge))
    huge["worker"][name] = 0 * values + 2e30
    told(
        "the state's 'worker' has values above 1e30", lambda: hook.load_state_dict(huge)
    )
    huge["worker"][name] = values + rank
    told("state must be the same on all ranks", lambda: hook.load_state_dict(huge))
    unknown = cases.repacked(cases.sharded(cases.net()))
    first, *_ = cases.param_groups(unknown)
    del first.fsdp_params[-1].mp_policy
    refused(UNKNOWN, unknown)
    assert not first.reduce_scatter_unused_params
    whole = fully_shard(cases.net(), mesh=init_device_mesh("cpu", (size,)))
    cases.loss_of(whole, rank, 0)
    early = "needs sharded parameters, but they are whole: call it before the first"
    refused(early, whole)
    other = cases.sharded(cases.net())
    one = no_module if rank == 0 else no_module.removeprefix("TypeError: ")
    refused(one, cases.net() if rank == 0 else other)
    fsdp.set_gradient_divide_factor(3.0)
    loss = cases.loss_of(fsdp, rank, 0)
    told("FSDP2 must average gradients, but 'module' asks for", loss.backward)
    hook.close()
    dist.destroy_process_group()
    return others


def test_what_it_refuses() -> None:
    assert ranks.results(2, __file__, "refusals") == [[], []]

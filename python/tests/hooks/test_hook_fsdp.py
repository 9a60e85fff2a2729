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
    unknown = cases.sharded(cases.net())
    del unknown._get_fsdp_state()._fsdp_param_groups[0].mp_policy
    refused("run with torch 2.13 and 2.14.1, does not know the FSDP2 of", unknown)
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

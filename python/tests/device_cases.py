# SPDX-License-Identifier: Apache-2.0
"""Runs on the CPU and on a device that must end with the same bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import devices
import engines
import optim_cases as cases
import thinwire
import torch
from device_uses import exact_loss
from thinwire import _core
from thinwire.comm import communicator_for, init_distributed

STEPS = 50
BUCKET = 300
"""Elements that travel together, and return to the device together."""
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "Lamb": {},
    "OneBitAdam": {"freeze_step": 8},
    "OneBitLamb": {"freeze_step": 8},
    "ZeroOneAdam": {
        "var_freeze_step": 16,
        "var_update_scaler": 2,
        "local_step_scaler": 8,
        "local_step_clipper": 4,
    },
}
LEAN = {
    "optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 8}},
    "thinwire": {"lean": True},
}
OUTER = {"sync_every": 3, "momentum": 0.3}
FEW_BITS = {"thinwire": {"zero_bits_up": 4, "zero_bits_down": 4}}


def engine_cases(world: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Configurations by name."""
    windows = {"gradient_accumulation_steps": 2}
    zero_2 = engines.zero(2)
    ways: dict[str, dict[str, dict[str, Any]]] = {
        "AdamW": {
            " accumulation": windows,
            " ZeRO-1": engines.zero(1),
            " ZeRO-2": zero_2,
            " ZeRO-2 accumulation": zero_2 | windows,
            " offload": engines.zero(2, offload=True),
        },
        "OneBitAdam": {" accumulation": windows},
        "Lamb": {" ZeRO-2": zero_2},
    }
    for precision, section in engines.PRECISIONS.items():
        for kind, options in OPTIMIZERS.items():
            of_kind = engines.optimizer_of(kind, **options) | section
            for way, more in ({"": {}} | ways.get(kind, {})).items():
                yield f"{kind} {precision}{way}", of_kind | more
    onebit = engines.optimizer_of("OneBitAdam", freeze_step=8)
    adam = engines.optimizer_of("AdamW")
    for precision, section in engines.PRECISIONS.items():
        for optimizer, warmup in ((onebit, {}), (adam, {"warmup_steps": 8})):
            loop = optimizer | {"thinwire": {"outer": OUTER | warmup}}
            yield (
                f"{optimizer['optimizer']['type']} {precision} outer loop",
                loop | section,
            )
    for precision in ("fp32", "bf16"):
        section = engines.PRECISIONS[precision]
        warm = onebit | {"thinwire": {"warmup_bits": 8}} | section
        yield f"OneBitAdam {precision} warm-up in 8 bits", warm
        yield f"lean {precision}", LEAN | section
        yield f"ZeRO-2 over 4 bits {precision}", FEW_BITS | zero_2 | section
    if world == 4:
        hosts = {"thinwire": {"hierarchy": "by_host", "ranks_per_host": 2}}
        yield "OneBitAdam on two hosts", onebit | hosts


def train_engine(
    comm: Any, config: dict[str, Any], device: torch.device | str, steps: int = STEPS
) -> tuple[list[float], torch.Tensor]:
    """Losses of this rank, and its parameters and buffers at the end."""
    config = engines.config_of(**config)
    config.setdefault("thinwire", {}).setdefault("bucket_elements", BUCKET)
    model, engine = made(comm, device, config)
    backwards = steps * engine.gradient_accumulation_steps()
    losses = [step(engine, number) for number in range(backwards)]
    engine.destroy()
    return [loss.item() for loss in losses], values_of(model)


def loss_of(model: Any, rank: int, step: int) -> torch.Tensor:
    """As engines.loss_of(), on the model's device; a loss without sums unless that is fence,
    which has the CPU's."""
    where = next(model.parameters()).device
    uses_all = rank % 2 == 0 or step % 3 != 0
    if not devices.IS_FENCE:
        named = getattr(model, "module", model).named_parameters()
        used = [p for name, p in named if uses_all or name != "sometimes"]
        return exact_loss(used, rank, step)
    dtype = engines.dtype_of(model)
    x, y = (part.to(where) for part in engines.batch(rank, step, dtype))
    return torch.nn.functional.mse_loss(model(x, uses_all), y)


def values_of(model: torch.nn.Module) -> torch.Tensor:
    """All parameters and buffers, on the CPU."""
    found = [*model.parameters(), *model.buffers()]
    return torch.cat([t.detach().to("cpu", torch.float32).reshape(-1) for t in found])


def differences(run: Callable[[str | torch.device], Any], device: torch.device) -> str:
    """What is not as on the CPU; empty: nothing."""
    (losses, values), (its_losses, its_values) = run("cpu"), run(device)
    if losses != its_losses and devices.IS_FENCE:
        at = next(
            k for k, pair in enumerate(zip(losses, its_losses)) if pair[0] != pair[1]
        )
        return f"loss {at}: {losses[at]} on the CPU, {its_losses[at]} on {device}"
    if not engines.same_bits(values, its_values):
        return f"parameters differ by {(values - its_values).abs().max().item()}"
    return ""


def join(timeout: float | None = None) -> tuple[_core.Communicator, torch.device]:
    """The ranks of devices.run(), over gloo."""
    init_distributed("gloo", verbose=False)
    comm = communicator_for(None, timeout=timeout)
    return comm, devices.device(comm.rank)


@contextmanager
def joined() -> Iterator[tuple[_core.Communicator, torch.device]]:
    comm, device = join()
    try:
        yield comm, device
    finally:
        comm.close()


def made(
    comm: Any, device: torch.device | str, config: dict[str, Any], **arguments: Any
) -> tuple[engines.Net, thinwire.Engine]:
    """A model on the device and its engine."""
    model = engines.Net(seed=comm.rank).to(device)
    return model, engines.make(comm, config, model=model, **arguments)


def step(engine: Any, number: int) -> torch.Tensor:
    """Returns the loss."""
    loss = loss_of(engine, engine.global_rank, number)
    engine.backward(loss)
    engine.step()
    return loss


def engine_differences(wanted: str = "") -> dict[str, str]:
    """Of all cases whose names contain `wanted`."""
    with joined() as (comm, device):
        return {
            name: differences(partial(train_engine, comm, config), device)
            for name, config in engine_cases(comm.size)
            if wanted in name
        }


PLAIN = """AdamW fp32 scaled, OnebitAdam fp16 scaled, OnebitAdam fp32 clipped,
OnebitAdam fp32 warm, OnebitAdam fp32 outer, OnebitAdam bf16 outer,
OnebitAdam fp16 scaled outer, OnebitAdam bf16 edited, AdamW bf16 given,
OnebitAdam bf16 mixed, OnebitAdam fp32 masked, AdamW fp32 experts"""


def plain_cases(world: int) -> list[str]:
    """Optimizers and dtypes, and ways to use them."""
    pairs = itertools.product(cases.KINDS, engines.DTYPES)
    all_pairs = [f"{kind} {precision}" for kind, precision in pairs]
    all_pairs.remove("LeanOnebitAdam fp16")
    hosts = ["OnebitAdam fp32 hosts"] if world == 4 else []
    return [*hosts, *all_pairs, *" ".join(PLAIN.split()).split(", ")]


def train_optimizer(
    comm: Any, name: str, device: torch.device | str, steps: int = STEPS
) -> tuple[list[float], torch.Tensor]:
    """As train_engine(), with an optimizer in a plain loop."""
    kind, precision, *ways = name.split()
    made_of, options = cases.KINDS[kind]
    model = engines.Net(seed=comm.rank).to(device, engines.DTYPES[precision])
    clips: dict[str, Any] = {"max_grad_norm": 0.5} if "clipped" in ways else {}
    if "warm" in ways:
        clips["warmup_bits"] = 4
    if "outer" in ways:
        clips["outer"] = OUTER
    if "hosts" in ways:
        clips |= {"hierarchy": "by_host", "ranks_per_host": 2}
    if "mixed" in ways:
        model.norm.float()
    params: Any = model.named_parameters()
    if "experts" in ways:  # each rank has a last layer of its own
        experts = [("last", p) for p in model.last.parameters()]
        named = [(f"{n}.{k}", p) for k, (n, p) in enumerate(experts)]
        dense = [(n, p) for n, p in params if not n.startswith("last")]
        alone = comm.split(comm.rank)
        params = [{"params": dense}, {"params": named, "expert_group": alone}]
    optimizer = made_of(
        params, lr=0.01, process_group=comm, bucket_elements=BUCKET, **options, **clips
    )
    if "masked" in ways:
        of_group = optimizer.param_groups[0]["params"]
        masks = [
            (torch.arange(p.numel()).view(p.shape) % 3 > 0).to(p) for p in of_group
        ]
        optimizer.param_groups[0]["exp_avg_mask"] = masks
    engines.send_others(model, comm)
    where = torch.device(device).type
    scaler = thinwire.GradScaler(where, enabled="scaled" in ways, init_scale=2.0**12)
    losses = []
    for step in range(steps):
        loss = loss_of(model, comm.rank, step)
        if step == 5 and "scaled" in ways:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if "scaled" in ways and precision == "fp32":
            scaler.unscale_(optimizer)
        if "given" in ways:
            own = optimizer.param_groups[0]["params"]
            given = [None if p.grad is None else 2 * p.grad for p in own]
            copies = [torch.empty_like(p) for p in own]
            optimizer.step(grads=given, output_params=copies)
            assert all(
                torch.equal(c, p) for c, p in zip(copies, own) if p.requires_grad
            )
        else:
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if "edited" in ways and step % 7 == 6:
            with torch.no_grad():
                model.first.weight.clamp_(-0.3, 0.3)
        losses.append(loss)
    optimizer.synchronize()
    optimizer.close()
    return [loss.item() for loss in losses], values_of(model)


def optimizer_differences(wanted: str = "") -> dict[str, str]:
    """As engine_differences()."""
    with joined() as (comm, device):
        return {
            name: differences(partial(train_optimizer, comm, name), device)
            for name in plain_cases(comm.size)
            if wanted in name
        }

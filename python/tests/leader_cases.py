# SPDX-License-Identifier: Apache-2.0
"""Engines with one leader per host, which several tests run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import device_cases as cases
import devices
import engines
import torch

STEPS = 12
ADAM = engines.optimizer_of("AdamW")
ONEBIT = engines.optimizer_of("OneBitAdam", freeze_step=4)
ZERO_2 = ADAM | engines.zero(2)
ZERO_ONE = engines.optimizer_of(
    "ZeroOneAdam", var_freeze_step=4, var_update_scaler=2, local_step_scaler=3
)


def windows(steps: int) -> dict[str, Any]:
    return {"gradient_accumulation_steps": steps}


IN_BF16 = {"data_types": {"grad_accum_dtype": "bf16"}}
CASES: dict[str, dict[str, Any]] = {
    "Adam": ADAM,
    "1-bit Adam": ONEBIT,
    "1-bit Adam, warm-up in 8 bits": ONEBIT | {"thinwire": {"warmup_bits": 8}},
    "0/1 Adam": ZERO_ONE,
    "LAMB": engines.optimizer_of("Lamb"),
    "ZeRO-2": ZERO_2,
    "ZeRO-1 bf16": ADAM | {"zero_optimization": {"stage": 1}} | engines.BF16,
    "Adam bf16": ADAM | engines.BF16,
    "ZeRO-2 fp16": ZERO_2 | engines.FP16,
    "lean": cases.LEAN,
    "clipped": ADAM | {"gradient_clipping": 0.5},
    "Adam, windows of 3": ADAM | windows(3),
    "1-bit Adam bf16, windows of 2": ONEBIT | engines.BF16 | windows(2),
    "Adam bf16, windows of 3": ADAM | engines.BF16 | windows(3),
    "Adam bf16, windows of 3 in bf16": ADAM | engines.BF16 | windows(3) | IN_BF16,
    "ZeRO-2, windows of 3": ZERO_2 | windows(3),
    "ZeRO-2 fp16, windows of 2": ZERO_2 | engines.FP16 | windows(2),
}


def window_of(name: str) -> int:
    """Returns the number of backwards per step and rank."""
    steps: int = CASES[name].get("gradient_accumulation_steps", 1)
    return steps


def adds_narrow(name: str) -> bool:
    """Returns whether windows add up 16-bit gradients in 16 bits, as autograd does."""
    return "data_types" in CASES[name]


def has_one_backward(name: str) -> bool:
    """Returns whether one rank per host makes one backward of all its host's losses. ZeRO-2
    averages after every backward, and ranks of a host first add up windows of their own."""
    return name.startswith("ZeRO") or window_of(name) > 1


def net_of(name: str, rank: int) -> torch.nn.Module:
    model = engines.Net(seed=rank)
    if window_of(name) > 1:  # its forwards on two streams must not write statistics
        model.norm = torch.nn.Identity()  # type: ignore[assignment]
    return model


def config_of(name: str, per_host: int, by_leaders: bool) -> dict[str, Any]:
    config = engines.config_of(**CASES[name])
    if by_leaders:
        config["thinwire"] = config.get("thinwire", {}) | {"ranks_per_host": per_host}
    else:
        each = 1 if has_one_backward(name) else per_host
        config["gradient_accumulation_steps"] = each
    return config


def loss_of(model: Any, name: str, rank: int, step: int, micro: int) -> torch.Tensor:
    """Returns the loss of one backward of a window. On odd ranks it leaves a parameter out
    in every third, so also in the last one of some windows."""
    loss = cases.loss_of(model, rank, 10 * step + micro)
    return loss * float("inf") if "fp16" in name and step == 5 and rank == 1 else loss


def led(names: list[str], per_host: int) -> list[Any]:
    """Of this rank: losses and parameters of every case."""
    comm, device = cases.join()
    torch.accelerator.set_device_index(device.index)
    found = []
    for name in names:
        model = net_of(name, comm.rank).to(device)
        engine = engines.make(comm, config_of(name, per_host, True), model=model)
        assert engine._training.hosts is not None
        losses = []
        for step in range(STEPS):
            window = []
            used: Counter[str] = Counter()
            for loss in losses_on_streams(engine, name, step):
                used.subtract(devices.counts())
                engine.backward(loss)
                engine.step()
                used.update(devices.counts())
                window.append(loss.detach())
                # The next hooks run on this backward's stream while its graph lives.
                del loss
            if devices.IS_FENCE and step > 1:
                assert used["host_waits"] <= engine._training.hosts.is_leader, (
                    name,
                    used,
                )
                assert used["unpinned_async"] == 0, (name, used)
            losses += [loss.item() for loss in window]
        assert engine.report is not None
        report = engine.report
        same = [report.grad_norm, report.loss_scale, report.steps, engine.loss_scale()]
        found.append([losses, parameters_of(model), [*same, engine.skipped_steps]])
        engine.destroy()
    comm.close()
    return found


def losses_on_streams(engine: Any, name: str, step: int) -> Iterator[torch.Tensor]:
    """Yields the losses of a window. If the engine adds up gradients, every other loss is
    made on a side stream, where the caller makes its backward too. Neither stream waits for
    the other one before the window ends. autograd itself would not wait, either."""
    device = next(engine.module.parameters()).device
    current = torch.accelerator.current_stream(device)
    is_narrow = engines.dtype_of(engine) != torch.float32
    has_side = window_of(name) > 1 and is_narrow and not adds_narrow(name)
    side = torch.Stream(device) if has_side else current
    side.wait_event(current.record_event())
    for micro in range(window_of(name)):
        with current if micro % 2 else side:
            yield loss_of(engine, name, engine.global_rank, step, micro)
    current.wait_event(side.record_event())


def parameters_of(model: torch.nn.Module) -> list[float]:
    parts = [
        p.detach().to("cpu", torch.float32).reshape(-1) for p in model.parameters()
    ]
    return torch.cat(parts).tolist()

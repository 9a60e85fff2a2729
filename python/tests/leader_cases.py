# SPDX-License-Identifier: Apache-2.0
"""Engines with one leader per host, which several tests run."""

from __future__ import annotations

from typing import Any

import device_cases as cases
import devices
import engines
import torch
from thinwire.comm import communicator_for, init_distributed

STEPS = 12
ZERO_2 = {"zero_optimization": {"stage": 2, "reduce_bucket_size": 500}}


def adam(kind: str, **options: Any) -> dict[str, Any]:
    return {"optimizer": {"type": kind, "params": {"lr": 0.01, **options}}}


CASES: dict[str, dict[str, Any]] = {
    "Adam": adam("AdamW"),
    "1-bit Adam": adam("OneBitAdam", freeze_step=4),
    "1-bit Adam, warm-up in 8 bits": adam("OneBitAdam", freeze_step=4)
    | {"thinwire": {"warmup_bits": 8}},
    "0/1 Adam": adam(
        "ZeroOneAdam", var_freeze_step=4, var_update_scaler=2, local_step_scaler=3
    ),
    "LAMB": adam("Lamb"),
    "ZeRO-2": adam("AdamW") | ZERO_2,
    "Adam bf16": adam("AdamW") | {"bf16": {"enabled": True}},
    "ZeRO-2 fp16": adam("AdamW")
    | ZERO_2
    | {"fp16": {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 4}},
    "lean": cases.LEAN,
    "clipped": adam("AdamW") | {"gradient_clipping": 0.5},
}


def config_of(name: str, per_host: int, by_leaders: bool) -> dict[str, Any]:
    config = engines.config_of(**CASES[name])
    if by_leaders:
        config["thinwire"] = config.get("thinwire", {}) | {"ranks_per_host": per_host}
    elif not name.startswith("ZeRO-2"):
        config["gradient_accumulation_steps"] = per_host
    return config


def led(names: list[str], per_host: int) -> list[Any]:
    """Of this rank: losses and parameters of every case."""
    init_distributed("gloo", verbose=False)
    comm = communicator_for(None)
    device = devices.device(comm.rank)
    torch.accelerator.set_device_index(device.index)
    found = []
    for name in names:
        model = engines.Net(seed=comm.rank).to(device)
        engine = engines.make(comm, config_of(name, per_host, True), model=model)
        assert engine._hosts is not None
        dtype = next(model.parameters()).dtype
        losses = []
        for step in range(STEPS):
            loss = cases.loss_of(engine, comm.rank, step, dtype)
            if "fp16" in name and step == 5 and comm.rank == 1:
                loss = loss * float("inf")
            before = devices.counts()
            engine.backward(loss)
            engine.step()
            used = {k: n - before[k] for k, n in devices.counts().items()}
            if devices.IS_FENCE and step > 1:
                assert used["host_waits"] <= engine._hosts.is_leader, (name, used)
                assert used["unpinned_async"] == 0, (name, used)
            losses.append(loss.item())
        assert engine.report is not None
        report = engine.report
        same = [report.grad_norm, report.loss_scale, report.steps, engine.loss_scale()]
        found.append([losses, parameters_of(model), [*same, engine.skipped_steps]])
        engine.destroy()
    comm.close()
    return found


def parameters_of(model: torch.nn.Module) -> list[float]:
    parts = [
        p.detach().to("cpu", torch.float32).reshape(-1) for p in model.parameters()
    ]
    return torch.cat(parts).tolist()

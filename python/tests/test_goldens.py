# SPDX-License-Identifier: Apache-2.0
"""Semantics "deepspeed" through Python gives DeepSpeed's numbers, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import thinwire
import torch
from recordings import Recording, recording
from thinwire.comm import run_local_ranks


def equal_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def wanted(case: Recording, name: str, rank: int, step: int) -> torch.Tensor:
    values = case.array(name)
    return values[0 if values.shape[0] == 1 else rank][step]


def flat(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1).float() for p in parameters])


class Linear(torch.nn.Module):
    """Its gradients are what it is called with."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__()
        self.tensors = torch.nn.ParameterList(parameters)

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        terms = [
            (p.float() * g).sum() for p, g in zip(self.tensors, gradients, strict=True)
        ]
        return torch.stack(terms).sum()


PRECISIONS = {"fp32": {}, "fp16": {"fp16": {"enabled": True}}}
PRECISIONS["bf16"] = {"bf16": {"enabled": True}}


def zero_config(meta: dict[str, Any]) -> dict[str, Any]:
    opts = dict(meta["opts"])
    config: dict[str, Any] = {
        "optimizer": {"type": meta["optimizer"], "params": opts},
        "gradient_accumulation_steps": meta["gas"],
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": meta["clip_grad"],
        "communication_data_type": meta["comm"],
        "data_types": {"grad_accum_dtype": meta["accum"]},
        "zero_optimization": {
            "stage": meta["stage"],
            "reduce_bucket_size": meta["reduce_bucket_size"],
            "reduce_scatter": meta["reduce_scatter"],
            "round_robin_gradients": meta["round_robin"],
        },
        "thinwire": {"semantics": "deepspeed"},
    }
    if meta["optimizer"] == "Adam":
        opts["adam_w_mode"] = False
    config |= PRECISIONS[meta["dtype"]]
    if meta["fp16"]:
        config["fp16"] = {"enabled": True, **scaler(meta["fp16"])}
    return config


def scaler(recorded: dict[str, Any]) -> dict[str, Any]:
    settings = {
        "initial_scale_power": int(recorded["init_scale"]).bit_length() - 1,
        "loss_scale_window": int(recorded["scale_window"]),
        "min_loss_scale": recorded["min_scale"],
    }
    if "delayed_shift" in recorded:
        settings["hysteresis"] = recorded["delayed_shift"]
        settings["consecutive_hysteresis"] = recorded["consecutive_hysteresis"]
    return settings


def make_engine(
    case: Recording, config: dict[str, Any], comm: Any, dtype: torch.dtype
) -> thinwire.Engine:
    # DeepSpeed's masters are made of rounded parameters.
    start = case.array("init.bin").to(dtype).float()
    parameters = case.parameters(start)
    engine, *_ = thinwire.initialize(
        model=Linear(parameters),
        model_parameters=case.groups(parameters),
        config=config,
        process_group=comm,
    )
    return engine


def own_gradients(
    case: Recording, rank: int, step: int, micro: int | None
) -> list[torch.Tensor]:
    values = case.array("grads.bin")[rank][step]
    values = (values if micro is None else values[micro]).clone()
    if [step, rank] in case.meta["inf_at"]:
        values[0] = float("inf")
    return case.cut(values)


@pytest.mark.parametrize(
    "name",
    [
        "zero1_w2_fp32",
        "zero1_w2_bf16_accum16",
        "zero2_w2_fp16_adam",
        "zero2_w4_gas2_clip",
    ],
)
def test_zero(name: str) -> None:
    case = recording(name)
    meta = case.meta
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

    def run(comm: Any) -> None:
        engine = make_engine(case, zero_config(meta), comm, dtype[meta["dtype"]])
        for step in range(meta["steps"]):
            for micro in range(meta["gas"]):
                engine.backward(engine(own_gradients(case, comm.rank, step, micro)))
                engine.step()
            log = meta["step_log"][step]
            assert engine.was_step_applied() != log["overflow"]
            assert engine.loss_scale() == log["loss_scale_after"]
            want = wanted(case, "params.bin", comm.rank, step)
            assert equal_bits(flat(list(engine.parameters())), want), f"step {step}"
        engine.destroy()

    run_local_ranks(meta["world"], run)


@pytest.mark.parametrize("name", ["adam_w4_fp16_fused", "lamb_w4_fp16_unfused"])
def test_sixteen_bits(name: str) -> None:
    case = recording(name)
    meta = case.meta
    kind = {"adam": "OneBitAdam", "lamb": "OneBitLamb"}[name.split("_")[0]]
    config = {
        "optimizer": {"type": kind, "params": meta["opts"]},
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": meta["fp16"]["clip_grad"],
        "fp16": {"enabled": True, **scaler(meta["fp16"])},
        "thinwire": {"semantics": "deepspeed"},
    }

    def run(comm: Any) -> None:
        engine = make_engine(case, config, comm, torch.float16)
        for step in range(meta["steps"]):
            engine.backward(engine(own_gradients(case, comm.rank, step, None)))
            engine.step()
            log = meta["step_log"][step]
            assert engine.was_step_applied() != log["overflow"]
            want = wanted(case, "params16.bin", comm.rank, step)
            assert equal_bits(flat(list(engine.parameters())), want), f"step {step}"
        engine.destroy()

    run_local_ranks(meta["world"], run)

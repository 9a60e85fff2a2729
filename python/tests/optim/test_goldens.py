# SPDX-License-Identifier: Apache-2.0
"""Semantics "deepspeed" through Python gives DeepSpeed's numbers, bit for bit: those that
tests/golden/README.md describes."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import thinwire
import torch
from engines import BF16, DTYPES, flat, same_bits
from thinwire.comm import run_local_ranks

GOLDEN = Path(__file__).resolve().parents[3] / "tests" / "golden" / "recordings.py"


class Recording:
    """One case: its settings, and arrays by file name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta: dict[str, Any] = json.loads((folder / "meta.json").read_text())

    def array(self, name: str) -> torch.Tensor:
        """float32, in the shape that was recorded."""
        about = self.meta["files"][name]
        data = bytearray((self.folder / name).read_bytes())
        return torch.frombuffer(data, dtype=torch.float32).view(about["shape"])

    def cut(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Views of a flat array, one per tensor."""
        return [
            values.narrow(0, tensor["off"], tensor["n"]).view(tensor["shape"])
            for tensor in self.meta["tensors"]
        ]

    def groups(self, parameters: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
        """Returns the groups that an engine takes, each with its own settings."""
        groups: list[dict[str, Any]] = [
            {"params": [], **{key: group[key] for key in group if key != "shapes"}}
            for group in self.meta["groups"]
        ]
        for parameter, tensor in zip(parameters, self.meta["tensors"], strict=True):
            groups[tensor["group"]]["params"].append(parameter)
        return groups


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    runpy.run_path(str(GOLDEN))["unpack"](folder)
    return folder


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


def zero_config(meta: dict[str, Any]) -> dict[str, Any]:
    opts = dict(meta["opts"])
    if meta["optimizer"] == "Adam":
        opts["adam_w_mode"] = False
    return {
        "optimizer": {"type": meta["optimizer"], "params": opts},
        "gradient_accumulation_steps": meta["gas"],
        "gradient_clipping": meta["clip_grad"],
        "communication_data_type": meta["comm"],
        "data_types": {"grad_accum_dtype": meta["accum"]},
        "zero_optimization": {
            "stage": meta["stage"],
            "reduce_bucket_size": meta["reduce_bucket_size"],
            "reduce_scatter": meta["reduce_scatter"],
            "round_robin_gradients": meta["round_robin"],
        },
        **(BF16 if meta["dtype"] == "bf16" else {}),
    }


def low_bit_config(meta: dict[str, Any], kind: str) -> dict[str, Any]:
    return {
        "optimizer": {"type": kind, "params": meta["opts"]},
        "gradient_clipping": meta["fp16"]["clip_grad"],
    }


def scaler(recorded: dict[str, Any]) -> dict[str, Any]:
    settings = {
        "initial_scale_power": int(recorded["init_scale"]).bit_length() - 1,
        "loss_scale_window": int(recorded["scale_window"]),
        "min_loss_scale": recorded["min_scale"],
    }
    if "delayed_shift" in recorded:
        settings["hysteresis"] = recorded["delayed_shift"]
        settings["consecutive_hysteresis"] = recorded["consecutive_hysteresis"]
    return {"fp16": {"enabled": True, **settings}}


LOW_BIT = {"adam_w4_fp16_fused": "OneBitAdam", "lamb_w4_fp16_unfused": "OneBitLamb"}


@pytest.mark.parametrize(
    "name",
    [
        "zero1_w2_fp32",
        "zero1_w2_bf16_accum16",
        "zero2_w2_fp16_adam",
        "zero2_w4_gas2_clip",
        *LOW_BIT,
    ],
)
def test_an_engine_has_the_bits_of_deepspeed(name: str, recordings: Path) -> None:
    case = Recording(recordings / name)
    meta = case.meta
    is_zero = name not in LOW_BIT
    config = zero_config(meta) if is_zero else low_bit_config(meta, LOW_BIT[name])
    config |= {
        "train_micro_batch_size_per_gpu": 1,
        "thinwire": {"semantics": "deepspeed"},
        **(scaler(meta["fp16"]) if meta["fp16"] else {}),
    }
    dtype = DTYPES[meta["dtype"] if is_zero else "fp16"]

    def run(comm: Any) -> None:
        # DeepSpeed's masters are made of rounded parameters.
        start = case.array("init.bin").to(dtype).float()
        parameters = [torch.nn.Parameter(part.clone()) for part in case.cut(start)]
        engine, *_ = thinwire.initialize(
            model=Linear(parameters),
            model_parameters=case.groups(parameters),
            config=config,
            process_group=comm,
        )
        wanted = case.array("params.bin" if is_zero else "params16.bin")
        wanted = wanted[comm.rank if len(wanted) > 1 else 0]
        given = case.array("grads.bin")[comm.rank]
        for step in range(meta["steps"]):
            for gradients in given[step] if is_zero else given[step : step + 1]:
                gradients = gradients.clone()
                if [step, comm.rank] in meta["inf_at"]:
                    gradients[0] = float("inf")
                engine.backward(engine(case.cut(gradients)))
                engine.step()
            log = meta["step_log"][step]
            assert engine.was_step_applied() != log["overflow"]
            if is_zero:
                assert engine.loss_scale() == log["loss_scale_after"]
            assert same_bits(flat(engine), wanted[step]), f"step {step}"
        engine.destroy()

    run_local_ranks(meta["world"], run)

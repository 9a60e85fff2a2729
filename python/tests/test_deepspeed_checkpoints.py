# SPDX-License-Identifier: Apache-2.0
"""Runs with semantics "deepspeed" go on from checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engines import FP16, flat, loss_of, make, same_bits, train
from thinwire.comm import run_local_ranks


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(
    "params",
    [
        {"type": "OneBitAdam", "params": {"lr": 0.01, "freeze_step": 3}},
        {"type": "OneBitLamb", "params": {"lr": 0.01, "freeze_step": 3}},
        {
            "type": "ZeroOneAdam",
            "params": {
                "lr": 0.01,
                "var_freeze_step": 4,
                "var_update_scaler": 1,
                "local_step_scaler": 2,
            },
        },
    ],
    ids=lambda params: params["type"],
)
def test_a_saved_engine_goes_on_with_the_same_bits(
    params: Any, precision: str, tmp_path: Path
) -> None:
    dtype = torch.float16 if precision == "fp16" else torch.float32
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": params,
        "gradient_clipping": 0.0,
        "thinwire": {"semantics": "deepspeed"},
        **(FP16 if precision == "fp16" else {}),
    }

    def run(comm: Any) -> None:
        engine = make(comm, config)
        for step in range(9):
            engine.save_checkpoint(tmp_path, tag=f"{step}")
            train(engine, range(step, step + 1), dtype)
        for step in (1, 4, 6, 7):
            other = make(comm, config)
            other.load_checkpoint(tmp_path, tag=f"{step}")
            train(other, range(step, 9), dtype)
            assert same_bits(flat(other.module), flat(engine.module)), step
        engine.backward(loss_of(engine, comm.rank, 9, dtype))
        engine.step()

    run_local_ranks(2, run)

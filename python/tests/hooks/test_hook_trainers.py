# SPDX-License-Identifier: Apache-2.0
"""thinwire.ddp_hook in Accelerate, the Trainer of transformers, and Lightning."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import hook_cases as cases
import pytest
import ranks
import thinwire
import torch


def result(hook: Any, module: Any) -> dict[str, Any]:
    assert hook.report is not None
    return {
        "backwards": hook.report.backwards,
        "bytes": hook.report.bytes_sent,
        "sum": float(sum(p.double().sum() for p in module.parameters())),
    }


def accelerate() -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = cases.net()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.01))
    hook = thinwire.ddp_hook(model)
    for step in range(3):
        optimizer.zero_grad()
        accelerator.backward(cases.loss_of(model, accelerator.process_index, step))
        optimizer.step()
    return result(hook, net)


def trainer(out: str) -> dict[str, Any]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import client_runs
    from thinwire.integrations.transformers import DdpHook
    from transformers import Trainer

    thinwire.init_distributed("gloo", verbose=False)
    model = client_runs.tiny_gpt2()
    made = Trainer(
        model, client_runs.trainers_arguments(out, 3), None, client_runs.Counting()
    )
    callback = DdpHook(made, bits=8)
    made.add_callback(callback)
    made.train()
    return result(callback.hook, model)


def lightning() -> dict[str, Any]:
    import lightning as trainers
    from thinwire.integrations.lightning import HookStrategy

    class Module(trainers.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = cases.net()

        def training_step(self, batch: Any, step: int) -> torch.Tensor:
            return cases.loss_of(self.net, self.global_rank, step)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    made = trainers.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=(strategy := HookStrategy({"bits": 4})),
        max_steps=3,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    made.fit(module := Module(), torch.utils.data.DataLoader([0] * 8))
    return result(strategy.hook, module)


@pytest.mark.parametrize("name", ["accelerate", "trainer", "lightning"])
def test_trainers_average_in_few_bits(name: str, tmp_path: Path) -> None:
    given = (str(tmp_path),) if name == "trainer" else ()
    one, two = ranks.results(2, __file__, name, *given, seconds=110)
    assert one["backwards"] == 3 and one["bytes"] > 0
    assert one["sum"] == two["sum"]

# SPDX-License-Identifier: Apache-2.0
"""The Trainer of Hugging Face transformers, and Accelerate, with a model on a device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import devices
import torch

SAVED, LAST = 4, 8


def train(out: str, where: str, resume: str | None = None) -> list[list[float]]:
    """The losses of steps, and the parameters at the end."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import client_runs
    import thinwire
    from transformers import Trainer

    class OnDevice(Trainer):
        """transformers itself knows the devices of makers only, and moves nothing to ours."""

        def _move_model_to_device(self, model: Any, device: Any) -> Any:
            return model.to(place)

        def _prepare_input(self, data: Any) -> Any:
            moved = super()._prepare_input(data)
            return moved.to(place) if isinstance(moved, torch.Tensor) else moved

        def training_step(self, *arguments: Any) -> torch.Tensor:
            return super().training_step(*arguments).to("cpu")

    place = devices.begin(where)
    model = client_runs.tiny_gpt2().to(place)
    optimizer = thinwire.OnebitAdam(model.parameters(), lr=1e-2, freeze_step=3)
    arguments = client_runs.trainers_arguments(out, LAST)
    arguments.save_steps, arguments.logging_steps = SAVED, 1
    trainer = OnDevice(
        model, arguments, None, client_runs.Counting(), optimizers=(optimizer, None)
    )
    trainer.accelerator.device_placement = where == "cpu"
    thinwire.integrations.transformers.attach(trainer)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        trainer.train(resume_from_checkpoint=resume)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert next(model.parameters()).device == place
    return [losses, *(p.detach().cpu().flatten().tolist() for p in model.parameters())]


def test_it_trains_saves_and_resumes_as_on_the_cpu(tmp_path: Path) -> None:
    def run(where: str, resume: str = "") -> Any:
        out = str(tmp_path / where)
        saved = resume and f"{out}/checkpoint-{SAVED}"
        return devices.run(1, __file__, "train", out, where, saved or None)[0]

    expected = run("cpu")
    assert len(expected[0]) == LAST
    assert devices.alike(run("device"), expected)
    assert devices.alike(run("device", resume="yes"), expected)


def accelerate(folder: str, where: str) -> list[list[float]]:
    """The losses of steps that are repeated from a saved state, and the parameters."""
    import client_runs
    import thinwire
    from accelerate import Accelerator

    place = devices.begin(where)
    accelerator = Accelerator(cpu=True, device_placement=where == "cpu")
    thinwire.integrations.accelerate.attach(accelerator)
    torch.manual_seed(0)
    model = client_runs.small().to(place)
    optimizer = thinwire.OnebitAdam(model.parameters(), lr=1e-2, freeze_step=3)
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for begin in (0, SAVED):
        for step in range(begin, begin + SAVED):
            x, y = (part.to(place) for part in next(client_runs.batches(step)))
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if begin == 0:
            accelerator.save_state(folder)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            accelerator.load_state(folder)
    return [losses, *(p.detach().cpu().flatten().tolist() for p in model.parameters())]


def test_accelerate_trains_saves_and_resumes_as_on_the_cpu(tmp_path: Path) -> None:
    on_cpu, on_device = (
        devices.run(1, __file__, "accelerate", str(tmp_path / where), where)[0]
        for where in ("cpu", "device")
    )
    assert len(on_cpu[0]) == 2 * SAVED
    assert devices.alike(on_device, on_cpu)

# SPDX-License-Identifier: Apache-2.0
"""Trainers of others with optimizers whose ranks differ between exchanges: what they
evaluate and save is the synchronized model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import client_runs
import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import IntervalStrategy

# Between two exchanges.
EVALUATED, SAVED, LAST = 7, 9, 10
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "zero_one": (
        thinwire.ZeroOneAdam,
        {
            "lr": 1e-2,
            "var_freeze_step": 2,
            "local_step_scaler": 1,
            "local_step_clipper": 8,
        },
    ),
    "under": (
        thinwire.OnebitAdam,
        {"lr": 1e-2, "freeze_step": 2, "compressed_under_next_step": True},
    ),
    "outer": (thinwire.AdamW, {"lr": 1e-2, "outer": {"sync_every": 5}}),
}


def optimizer_of(model: torch.nn.Module, kind: str) -> Any:
    made, options = KINDS[kind]
    return made(model.parameters(), **options)


class Seen:
    """Compares what a trainer reads with the synchronized model. Collective."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self.all: dict[str, bool] = {}

    def local(self, step: int) -> None:
        if step in (EVALUATED, SAVED, LAST):
            self.all[f"local after step {step}"] = not self._is_equal()

    def equal(self, when: str) -> None:
        self.all[when] = self._is_equal()

    def _is_equal(self) -> bool:
        own = [p.flatten().tolist() for p in self._model.parameters()]
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, own)
        return all(other == own for other in every)

    def saved(self, what: str, found: dict[str, torch.Tensor], optimizer: Any) -> None:
        with optimizer.evaluation():
            now = {n: p.detach().clone() for n, p in self._model.named_parameters()}
        names = found.keys() & now.keys()
        assert names
        self.all[what] = all(torch.equal(found[name], now[name]) for name in names)


def trainer(kind: str, out: str) -> dict[str, bool]:
    from transformers import Trainer, TrainerCallback

    thinwire.init_distributed("gloo", verbose=False)
    arguments = client_runs.trainers_arguments(out, LAST)
    arguments.save_steps, arguments.eval_steps = SAVED, EVALUATED
    arguments.eval_strategy = IntervalStrategy.STEPS
    seen = Seen(model := client_runs.tiny_gpt2())

    def saved(what: str, folder: str) -> None:
        dist.barrier()  # rank 0 writes
        found = load_file(f"{folder}/model.safetensors")
        seen.saved(what, found, client.optimizer.optimizer)

    class Looking(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
            seen.local(state.global_step)
            control.should_save = state.global_step == SAVED

        def on_prediction_step(self, *_: Any, **__: Any) -> None:
            seen.equal("evaluated")

        def on_save(self, *_: Any, **__: Any) -> None:
            saved("saved", f"{out}/checkpoint-{SAVED}")

        def on_train_end(self, *_: Any, **__: Any) -> None:
            if dist.get_rank() == 0:
                client.save_model(f"{out}/end")
            saved("saved at the end", f"{out}/end")

    data = client_runs.Counting()
    client = Trainer(
        model,
        arguments,
        None,
        data,
        data,
        callbacks=[Looking()],
        optimizer_cls_and_kwargs=KINDS[kind],
    )
    thinwire.integrations.transformers.attach(client)
    client.train()
    return seen.all


def accelerate(kind: str, out: str) -> dict[str, bool]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    thinwire.integrations.accelerate.attach(accelerator)
    seen = Seen(model := client_runs.small())
    optimizer = optimizer_of(model, kind)
    forward, prepared = accelerator.prepare(model, optimizer)
    saves = {
        EVALUATED: lambda: accelerator.save_state(f"{out}/{EVALUATED}"),
        SAVED: lambda: accelerator.save_model(forward, f"{out}/{SAVED}"),
    }
    batches = client_runs.batches(accelerator.process_index, LAST)
    for step, (x, y) in enumerate(batches, 1):
        accelerator.backward(torch.nn.functional.mse_loss(forward(x), y))
        prepared.step()
        prepared.zero_grad()
        seen.local(step)
        if step in saves:
            saves[step]()
            accelerator.wait_for_everyone()
            found = load_file(f"{out}/{step}/model.safetensors")
            seen.saved(f"saved after step {step}", found, optimizer)
    return seen.all


def lightning(kind: str, out: str) -> dict[str, bool]:
    import lightning as trainers
    from thinwire.integrations.lightning import Checkpoint, strategy

    class Module(trainers.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = client_runs.small()

        def training_step(self, *_: Any) -> torch.Tensor:
            x, y = next(client_runs.batches(2 * self.global_step + self.global_rank))
            return torch.nn.functional.mse_loss(self.net(x), y)

        def validation_step(self, *_: Any) -> None:
            seen.equal("evaluated")

        def configure_optimizers(self) -> Any:
            self.made = optimizer_of(self, kind)
            return self.made

        def on_train_batch_end(self, *_: Any) -> None:
            if self.global_step == SAVED:
                file = torch.load(f"{out}/step={SAVED}.ckpt", weights_only=True)
                seen.saved("saved", file["state_dict"], self.made)

    class Looking(trainers.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            seen.local(trainer.global_step)

    seen = Seen(module := Module())
    saving = Checkpoint(out, every_n_train_steps=SAVED, filename="{step}")
    made = trainers.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy(),
        callbacks=[Looking(), saving],
        val_check_interval=EVALUATED,
        num_sanity_val_steps=0,
        max_steps=LAST,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(range(64))
    made.fit(module, loader, torch.utils.data.DataLoader(range(4)))
    seen.equal("equal at the end")
    return seen.all


def both(name: str, out: str) -> list[dict[str, bool]]:
    return [globals()[name](kind, f"{out}/{kind}") for kind in KINDS]


@pytest.mark.parametrize("name", ["trainer", "accelerate", "lightning"])
def test_what_is_evaluated_and_saved_is_synchronized(name: str, tmp_path: Path) -> None:
    n = 3 if name == "trainer" else 2
    for rank in ranks.results(n, __file__, "both", name, str(tmp_path), seconds=110):
        for seen in rank:
            assert len(seen) >= 5 and all(seen.values()), rank

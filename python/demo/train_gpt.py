#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train_gpt's model, text and settings in plain PyTorch, over gloo:

    torchrun --nproc-per-node 4 train_gpt.py --optimizer onebit_adam --data FILE...

`./demo --python` calls it. Leaves metrics.jsonl, summary.json and config.json as
train_gpt does.
"""

import argparse
import sys
import time

import recipe
import thinwire
import torch
import torch.distributed as dist
from gpt import Gpt, inputs_of
from record import Record
from text_data import TextData
from ways import WAYS

LINES = 20  # on stderr, of a whole run


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--optimizer", choices=[*WAYS], required=True)
    parser.add_argument("--out", required=True, help="folder for the results")
    parser.add_argument("--steps", type=int, default=recipe.STEPS)
    parser.add_argument("--batch", type=int, default=recipe.BATCH)
    parser.add_argument("--layers", type=int, default=recipe.LAYERS)
    parser.add_argument("--width", type=int, default=recipe.WIDTH)
    parser.add_argument("--seed", type=int, default=recipe.SEED)
    return parser.parse_args()


@torch.no_grad()
def validate(model, text, batch):
    total = torch.zeros(2, dtype=torch.float64)
    for sequences in text.validation_batches(
        dist.get_rank(), dist.get_world_size(), batch
    ):
        loss = model(*inputs_of(sequences)).double()
        total += torch.stack([loss * len(sequences), torch.tensor(len(sequences))])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def settings_of(given):
    """By train_gpt's names: what the report shows side by side."""
    return {
        "data": given.data,
        "optimizer": f"python-{given.optimizer}",
        "semantics": "corrected",
        "freeze_step": recipe.freeze_step_of(given.steps),
        "precision": "fp32",
        "zero": 0,
        "offload": "false",
        "steps": given.steps,
        "context": recipe.CONTEXT,
        "layers": given.layers,
        "width": given.width,
        "heads": 4,
        "lr": recipe.RATE,
        "weight_decay": 0,
        "clip": recipe.CLIP,
        "seed": given.seed,
        "batch": given.batch,
        "accumulate": 1,
        "warmup_steps": recipe.WARMUP_STEPS,
    }


def memory_of(model, way):
    """What tensors of these kinds hold on this rank; the rest is torch's."""

    def held(value):
        if isinstance(value, torch.Tensor):
            return value.nbytes
        parts = value.values() if isinstance(value, dict) else ()
        return sum(map(held, parts))

    parameters = sum(p.nbytes for p in model.parameters())
    states = held(way.optimizer.state_dict())
    kinds = {"parameters": parameters, "gradients": parameters, "states": states}
    return {**kinds, "buckets": 0, "other": 0, "peak": sum(kinds.values())}


class Run:
    def __init__(self, given):
        self.given = given
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.text = TextData(given.data, recipe.CONTEXT)
        self.model = Gpt(given.layers, given.width, recipe.CONTEXT)
        self.model.initialize(given.seed)
        self.way = WAYS[given.optimizer](self.model, recipe.freeze_step_of(given.steps))
        self.memory = {}
        self.record = Record(given.out, settings_of(given)) if self.rank == 0 else None
        self.rows = []  # whose losses stay with their ranks until some travel together

    def step(self, step):
        begin = time.perf_counter()
        rate = recipe.learning_rate(step, self.given.steps)
        for group in self.way.optimizer.param_groups:
            group["lr"] = rate
        batch = self.text.training_batch(
            self.given.seed, step, self.rank, self.world, self.given.batch
        )
        loss = self.way.forward(*inputs_of(batch))
        loss.backward()
        phase, sent = self.way.step()
        if not self.memory:  # torch makes states in the first step
            self.memory = memory_of(self.model, self.way)
        row = {"step": step, "loss": loss.item(), "lr": rate, "phase": phase}
        row["tokens"] = self.given.batch * recipe.CONTEXT * self.world
        row |= {"bytes_sent": sent, "seconds": time.perf_counter() - begin}
        row |= {"loss_scale": 1.0, "memory_bytes": self.memory["peak"]}
        self.rows.append(row)

    def share_losses(self):
        losses = torch.tensor([row["loss"] for row in self.rows], dtype=torch.float64)
        dist.all_reduce(losses)
        for row, loss in zip(self.rows, losses.tolist()):
            if self.record:
                self.record.add_step({**row, "loss": loss / self.world})
        self.rows = []
        return losses[-1].item() / self.world

    def take_steps(self):
        steps = self.given.steps
        for step in range(1, steps + 1):
            self.step(step)
            if step % max(1, steps // LINES) == 0 or step == steps:
                loss = self.share_losses()
                if self.record:
                    print(f"step {step} loss {loss:.4f}", file=sys.stderr, flush=True)
            if recipe.ends_a_tenth(step, steps):
                if self.rows:
                    self.share_losses()
                loss = validate(self.model, self.text, self.given.batch)
                if self.record:
                    self.record.add_validation({"step": step, "val_loss": loss})

    def finish(self):
        flat = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        if self.record:
            from thinwire import _core

            self.record.finish(
                {
                    "optimizer": f"python-{self.given.optimizer}",
                    "ranks": self.world,
                    "params": len(flat),
                    "memory": self.memory,
                    "params_checksum": f"{_core.checksum(flat):016x}",
                }
            )


def main():
    given = parse()
    torch.set_num_threads(1)
    thinwire.init_distributed("gloo")
    run = Run(given)
    run.take_steps()
    run.finish()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains train_gpt's model with torch's DistributedDataParallel over gloo, with
one communication hook at a time, as it is told to; or one run from end to end.

Under mpirun, which bench/network/run calls. What network_steps does with
Thinwire, this does with its peer: CONTROL/ddp.RANK is a pipe that says
"HOOK STEPS", line by line, and rank 0 answers with a line of JSON. "HOOK@MB" has
buckets of so many megabytes.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))

import mpirun_rank  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from gpt import Gpt, inputs_of
from text_data import TextData
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

# As train_gpt's.
CONTEXT, SEED, CLIP, BETAS = 64, 1, 1.0, (0.9, 0.99)
RATE, WARMUP_STEPS, FINAL_FRACTION = 1.5e-3, 50, 0.1
VALIDATIONS = 10


def bf16_hook(group, bucket):
    """DDP refuses the hook by its name where there is no NCCL; gloo can do it."""
    return default_hooks.bf16_compress_hook(group, bucket)


def hook(model, name):
    """Exact in the first two steps: DDP lays out its buckets anew after one."""
    if name == "ddp_bf16":
        model.register_comm_hook(None, bf16_hook)
    if name.startswith("ddp_powersgd"):
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=int(name.removeprefix("ddp_powersgd")),
            start_powerSGD_iter=2,
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


class Training:
    def __init__(self, given, what):
        name, _, megabytes = what.partition("@")
        megabytes = megabytes or given.bucket_mb
        plain = Gpt(given.layers, given.width, CONTEXT)
        plain.initialize(SEED)
        self.params = sum(p.numel() for p in plain.parameters())
        # PowerSGD begins an exchange when another ends, in whatever thread that
        # is: over gloo ranks disagree about the order unless one bucket holds all.
        if "powersgd" in name:
            megabytes = 1024
        self.model = DistributedDataParallel(
            plain,
            gradient_as_bucket_view=True,
            bucket_cap_mb=int(megabytes) if megabytes else None,
        )
        hook(self.model, name)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=RATE, betas=BETAS, fused=True
        )
        self.steps = 0
        self.batch = given.batch

    def step(self, text):
        self.steps += 1
        batch = text.training_batch(
            SEED, self.steps, dist.get_rank(), dist.get_world_size(), self.batch
        )
        loss = self.model(*inputs_of(batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    @torch.no_grad()
    def validate(self, text):
        total = torch.zeros(2, dtype=torch.float64)
        for batch in text.validation_batches(
            dist.get_rank(), dist.get_world_size(), self.batch
        ):
            loss = self.model.module(*inputs_of(batch)).double()
            total += torch.stack([loss * len(batch), torch.tensor(len(batch))])
        dist.all_reduce(total)
        return (total[0] / total[1]).item()


def serve(given, text):
    trainings = {}
    # Opening waits for who writes; reading leaves the core to others.
    with open(given.control / f"ddp.{dist.get_rank()}") as control:
        for line in control:
            name, steps = line.split()
            if name not in trainings:
                trainings[name] = Training(given, name)
            training = trainings[name]
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(int(steps)):
                loss = training.step(text)
            slowest = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if dist.get_rank() == 0:
                answer = {
                    "variant": name,
                    "steps": int(steps),
                    "seconds": slowest.item() / int(steps),
                    "loss": loss.item(),
                    "params": training.params,
                }
                print(json.dumps(answer), flush=True)


def learning_rate(step, steps):
    """Up to it, then half a cosine down to a tenth of it."""
    if step <= WARMUP_STEPS:
        return RATE * step / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / (steps - WARMUP_STEPS)
    half_wave = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return RATE * (FINAL_FRACTION + (1 - FINAL_FRACTION) * half_wave)


def train(given, text):
    """As train_gpt does, and leaves the same metrics.jsonl."""
    training = Training(given, "ddp_fp32")
    given.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for step in range(1, given.steps + 1):
        begin = time.perf_counter()
        for group in training.optimizer.param_groups:
            group["lr"] = learning_rate(step, given.steps)
        loss = training.step(text)
        seconds = time.perf_counter() - begin
        rows.append({"step": step, "loss": loss.item(), "seconds": seconds})
        if step * VALIDATIONS // given.steps != (step - 1) * VALIDATIONS // given.steps:
            rows.append({"step": step, "val_loss": training.validate(text)})
    if dist.get_rank() == 0:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (given.out / "metrics.jsonl").write_text(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    purpose = parser.add_mutually_exclusive_group(required=True)
    purpose.add_argument("--control", type=Path, help="folder of the pipes")
    purpose.add_argument("--out", type=Path, help="train one run, fp32")
    parser.add_argument("--steps", type=int, default=500, help="of that run")
    parser.add_argument("--bucket-mb", help="default: torch's, 1 and then 25")
    parser.add_argument("layers", type=int)
    parser.add_argument("width", type=int)
    parser.add_argument("batch", type=int, help="sequences per rank")
    parser.add_argument("text", nargs="+")
    given = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    text = TextData(given.text, CONTEXT)
    serve(given, text) if given.control else train(given, text)
    dist.destroy_process_group()


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains train_gpt's model in Python over gloo, in one of several ways.

The ways are torch's DistributedDataParallel with one communication hook at a time, local
Adam, and thinwire.OnebitAdam. It takes steps of several ways in turns, or makes one run
from end to end. bench/network/run calls this under mpirun. It does in Python what network_steps does in C++. CONTROL/python.RANK is a
pipe with lines "VARIANT STEPS", and rank 0 answers each with a line of JSON. "HOOK@MB"
has buckets of this many megabytes, "python_onebit_adam@ELEMENTS" of this many elements.
"""

import argparse
import json
import math
import os
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "demo")]

# Makes a process of mpirun a rank of torch.distributed, before torch is imported. Each
# rank has a separate host, so that nothing is sent through shared memory.
os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
os.environ["LOCAL_RANK"], os.environ["LOCAL_SIZE"] = "0", "1"
for variable in [name for name in os.environ if name.startswith("OMPI_")]:
    del os.environ[variable]

import thinwire
import torch
import torch.distributed as dist
from gpt import Gpt, inputs_of
from peers import LocalSteps, PowerSgd, Sent
from recipe import BETAS, CLIP, CONTEXT, RATE, SEED, learning_rate
from text_data import TextData
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from variants import VALIDATE_EVERY, VALIDATION_BYTES, WAYS, longest

EXACT_STEPS = 100  # as in network_steps.cpp
FIRST_STEPS_OF_DDP = 2  # it lays out its buckets anew after its first step
SEQUENCES = 16  # of a batch of held-out text


def bf16_hook(group, bucket):
    """Lets gloo run the hook, which DDP refuses by its name if there is no NCCL."""
    return default_hooks.bf16_compress_hook(group, bucket)


def number_in(name, prefix):
    """Returns the number after the prefix, or None if the name has another one."""
    rest = name.removeprefix(prefix)
    return int(rest) if rest != name else None


class Training:
    """A model that is trained in one way. Its first steps are those of the way, or as
    few as possible before steps are measured."""

    def __init__(self, given, what, seed=SEED, first_steps=FIRST_STEPS_OF_DDP):
        name, _, buckets = what.partition("@")
        self.model = Gpt(given.layers, given.width, CONTEXT)
        self.model.initialize(seed)
        self.seed, self.first_steps = seed, first_steps
        self.params = sum(p.numel() for p in self.model.parameters())
        self.steps = 0
        self.batch = given.batch
        self.backwards = number_in(name, "ddp_bf16_accumulate") or 1
        self.sent = Sent()
        self.hook = self.local = None
        if name == "python_onebit_adam":
            self.use_thinwire(buckets)
        elif interval := number_in(name, "local_adam"):
            self.forward = self.model
            parameters = self.model.parameters()
            self.local = LocalSteps(parameters, interval, first_steps, self.sent)
            self.optimizer = self.adam()
        else:
            self.use_ddp(name, buckets or given.bucket_mb)

    def use_thinwire(self, elements):
        self.forward = self.model
        self.optimizer = thinwire.OnebitAdam(
            self.model.parameters(),
            lr=RATE,
            betas=BETAS,
            freeze_step=EXACT_STEPS,
            max_grad_norm=CLIP,
            bucket_elements=int(elements) if elements else None,
            process_group=dist.group.WORLD,  # whatever the value of THINWIRE_COMM
        )

    def adam(self):
        return torch.optim.Adam(
            self.model.parameters(), lr=RATE, betas=BETAS, fused=True
        )

    def use_ddp(self, name, megabytes):
        # PowerSGD overlaps nothing, and has least to send if one bucket holds all.
        if "powersgd" in name:
            megabytes = 1024
        self.forward = DistributedDataParallel(
            self.model,
            gradient_as_bucket_view=True,
            bucket_cap_mb=int(megabytes) if megabytes else None,
        )
        self.bytes_each = 2 if "bf16" in name else 4
        if name.startswith("ddp_bf16"):
            self.forward.register_comm_hook(None, bf16_hook)
        elif rank := number_in(name, "ddp_powersgd"):
            state = PowerSgd(rank, self.first_steps, self.sent)
            self.forward.register_comm_hook(state, PowerSgd.average)
            self.bytes_each = 0  # it counts by itself
        elif rank := number_in(name, "ddp_low_rank"):
            self.hook = thinwire.ddp_hook(
                self.forward, low_rank=rank, first_steps=self.first_steps, first_bits=4
            )
        elif bits := number_in(name, "ddp_hook"):
            self.hook = thinwire.ddp_hook(self.forward, bits)
        self.optimizer = self.adam()

    def step(self, text):
        """Returns the loss, Thinwire's report if there is one, and the kind of step."""
        self.steps += 1
        batch = text.training_batch(
            self.seed, self.steps, dist.get_rank(), dist.get_world_size(), self.batch
        )
        if self.steps % self.backwards != 0:
            with self.forward.no_sync():
                loss = self.forward(*inputs_of(batch)) / self.backwards
                loss.backward()
            return loss.detach() * self.backwards, None, "compressed"
        loss = self.forward(*inputs_of(batch)) / self.backwards
        loss.backward()
        report, phase = None, "compressed"
        if self.local:
            self.local.after_backward(self.steps)
        if self.local or self.forward is not self.model:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        if self.local:
            phase = "local" if self.local.after_step(self.steps) else phase
        elif self.forward is self.model:
            report = self.optimizer.report
            self.sent.bytes += report.bytes_sent
        elif self.hook:
            self.sent.bytes += self.hook.report.bytes_sent
        else:
            self.sent.count(self.params, self.bytes_each)
        self.optimizer.zero_grad()
        return loss.detach() * self.backwards, report, phase

    @torch.no_grad()
    def validate(self, text):
        restore = self.local.swap_for_mean() if self.local else None
        total = torch.zeros(2, dtype=torch.float64)
        for batch in text.validation_batches(
            dist.get_rank(), dist.get_world_size(), SEQUENCES
        ):
            loss = self.model(*inputs_of(batch)).double()
            total += torch.stack([loss * len(batch), torch.tensor(len(batch))])
        dist.all_reduce(total)
        if restore:
            restore()
        return (total[0] / total[1]).item()


def serve(given, text):
    trainings = {}
    # Opening waits for the writer; reading leaves the core to others.
    with open(given.control / f"python.{dist.get_rank()}") as control:
        for line in control:
            name, steps = line.split()
            if name not in trainings:
                trainings[name] = Training(given, name)
            answer = answer_of(trainings[name], int(steps), text)
            if dist.get_rank() == 0:
                print(json.dumps({"variant": name, **answer}), flush=True)


def answer_of(training, steps, text):
    """Returns the seconds of a step, of the slowest rank."""
    phases = Counter()
    update = waiting = 0.0
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        loss, report, _ = training.step(text)
        if report:
            phases[report.phase] += 1
            update += report.seconds
            waiting += report.exchange_seconds
    seconds = time.perf_counter() - begin
    slowest = torch.tensor(
        [seconds, seconds - update, update, waiting], dtype=torch.float64
    )
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    of_step = (slowest / steps).tolist()
    answer = {"steps": steps, "seconds": of_step[0]}
    if phases:
        answer |= dict(zip(("backward", "update", "waiting"), of_step[1:]))
        answer["phases"] = phases
    return {**answer, "loss": loss.item(), "params": training.params}


def train(given, text):
    """Trains like train_gpt, and writes the same metrics.jsonl. A run that ends above
    the loss `until` continues at the last learning rate."""
    first_steps = WAYS[given.way].first_steps
    training = Training(given, given.way, given.seed, first_steps)
    rows, lowest = [], math.inf
    for step in range(1, longest(given.steps) + 1):
        begin, sent = time.perf_counter(), training.sent.bytes
        for group in training.optimizer.param_groups:
            group["lr"] = given.rate * learning_rate(step, given.steps)
        loss, _, phase = training.step(text)
        row = {"step": step, "loss": loss.item(), "phase": phase}
        row["bytes_sent"] = training.sent.bytes - sent
        rows.append({**row, "seconds": time.perf_counter() - begin})
        if step % VALIDATE_EVERY == 0 or step == given.steps:
            rows.append({"step": step, "val_loss": training.validate(text)})
            lowest = min(lowest, rows[-1]["val_loss"])
        if step >= given.steps and lowest <= given.until:
            break
    if dist.get_rank() == 0:
        given.out.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (given.out / "metrics.jsonl").write_text(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    purpose = parser.add_mutually_exclusive_group(required=True)
    purpose.add_argument("--control", type=Path, help="folder of the pipes")
    purpose.add_argument("--out", type=Path, help="train one run")
    parser.add_argument("--way", default="ddp_fp32", help="the hook of that run")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--steps", type=int, default=500, help="number of steps of that run"
    )
    parser.add_argument(
        "--until",
        type=float,
        default=math.inf,
        metavar="LOSS",
        help="continue above this loss, up to half as many steps more",
    )
    parser.add_argument(
        "--rate", type=float, default=1.0, help="factor of the learning rate"
    )
    parser.add_argument("--bucket-mb", help="default: torch's, 1 and then 25")
    parser.add_argument("layers", type=int)
    parser.add_argument("width", type=int)
    parser.add_argument("batch", type=int, help="sequences per rank")
    parser.add_argument("text", nargs="+")
    given = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    text = TextData(given.text, CONTEXT, VALIDATION_BYTES)
    serve(given, text) if given.control else train(given, text)
    dist.destroy_process_group()


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ddp.py [--zero STAGE] [LAYERS WIDTH BATCH ROUNDS]

Times a step of step_parts' model with torch's DistributedDataParallel, on CPUs over
gloo. `bench/overlap/run --ddp` starts it under mpirun. Rank 0 prints the slowest rank's
time, of the middle round and of the fastest. It clips, and updates with torch's Adam,
in fp32 and in one thread per rank. --zero, an argument of step_parts, has no effect
here.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "network"), str(ROOT / "python" / "demo")]

import mpirun_rank  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from gpt import Gpt, inputs_of
from torch import nn

CONTEXT, RATE = 64, 1e-3


def batch_of(sequences):
    data = torch.arange(sequences * (CONTEXT + 1)).view(sequences, -1) * 7 % 96 + 32
    return inputs_of(data)


def ddp(model):
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)

    def step(batch):
        model(*batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zero", type=int, default=2)
    parser.add_argument("sizes", type=int, nargs="*")
    args = parser.parse_intermixed_args()
    defaults = [4, 256, 8, 15]
    layers, width, sequences, rounds = args.sizes + defaults[len(args.sizes) :]

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    step = ddp(Gpt(layers, width, CONTEXT))
    batch, seconds = batch_of(sequences), []
    for round_ in range(rounds + 2):
        dist.barrier()
        begin = time.perf_counter()
        step(batch)
        slowest = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if round_ >= 2:  # warm; DDP rearranges its buckets after the first round
            seconds.append(slowest.item())
    if dist.get_rank() == 0:
        middle, least = statistics.median(seconds) * 1e3, min(seconds) * 1e3
        print(f"{'torch DDP':<44} {middle:8.1f} ms, least {least:8.1f} ms", flush=True)
    dist.destroy_process_group()


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peers.py ddp|deepspeed [--zero STAGE] [LAYERS WIDTH BATCH ROUNDS]

What a step of step_parts' model takes with torch's DistributedDataParallel, or
with DeepSpeed's ZeRO, on CPUs over gloo. Under mpirun, which `bench/overlap/run
--peers` calls; rank 0 prints the slowest rank's time, of the middle round and the fastest.
Both clip, and update with torch's Adam, in fp32 and in one thread per rank.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "peers"), str(ROOT / "python" / "demo")]

os.environ["DS_ACCELERATOR"] = "cpu"

import mpirun_rank  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from gpt import Gpt, inputs_of
from torch import nn

CONTEXT, RATE = 64, 1e-3


def batch_of(sequences):
    data = torch.arange(sequences * (CONTEXT + 1)).view(sequences, -1) * 7 % 96 + 32
    return inputs_of(data)


def ddp(model, _stage):
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)

    def step(batch):
        model(*batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return "torch DDP", step


def deepspeed(model, stage):
    import deepspeed

    deepspeed.utils.logger.setLevel("ERROR")
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {"lr": RATE, "torch_adam": True}},
        "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": True,
            "reduce_bucket_size": 1 << 20,
        },
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )

    def step(batch):
        engine.backward(engine(*batch))
        engine.step()

    return f"DeepSpeed ZeRO-{stage}", step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=["ddp", "deepspeed"])
    parser.add_argument("--zero", type=int, default=2)
    parser.add_argument("sizes", type=int, nargs="*")
    args = parser.parse_intermixed_args()
    defaults = [4, 256, 8, 15]
    layers, width, sequences, rounds = args.sizes + defaults[len(args.sizes) :]

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    make = {"ddp": ddp, "deepspeed": deepspeed}[args.peer]
    name, step = make(Gpt(layers, width, CONTEXT), args.zero)
    batch, seconds = batch_of(sequences), []
    for round_ in range(rounds + 2):
        dist.barrier()
        begin = time.perf_counter()
        step(batch)
        slowest = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if round_ >= 2:  # warm; DDP lays out its buckets anew after the first
            seconds.append(slowest.item())
    if dist.get_rank() == 0:
        middle, least = statistics.median(seconds) * 1e3, min(seconds) * 1e3
        print(f"{name:<44} {middle:8.1f} ms, least {least:8.1f} ms", flush=True)
    dist.destroy_process_group()


main()

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
import time

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
# A host each: nothing goes through shared memory. DeepSpeed must not hear that
# mpirun sees one host.
os.environ["LOCAL_RANK"], os.environ["LOCAL_SIZE"] = "0", "1"
for name in [name for name in os.environ if name.startswith("OMPI_")]:
    del os.environ[name]

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

CONTEXT, HEADS, BYTES, HISTORY, RATE = 64, 4, 256, 3, 1e-3


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x, sequences):
        parts = self.query_key_value(self.attention_norm(x))
        parts = parts.view(sequences, CONTEXT, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            parts[0], parts[1], parts[2], is_causal=True
        )
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(x.shape))
        hidden = functional.gelu(self.mlp_in(self.mlp_norm(x)), approximate="tanh")
        return x + self.mlp_out(hidden)


class Gpt(nn.Module):
    """apps/train_gpt/model.cpp's, parameter by parameter; gives the loss."""

    def __init__(self, layers, width):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(BYTES, width) for _ in range(HISTORY))
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)

    def forward(self, history, targets):
        x = sum(table(part) for table, part in zip(self.tables, history))
        x = (x + self.positions.weight).flatten(0, 1)
        for block in self.blocks:
            x = block(x, history.shape[1])
        return functional.cross_entropy(self.head(self.final_norm(x)), targets)


def batch_of(sequences):
    data = torch.arange(sequences * (CONTEXT + 1)).view(sequences, -1) * 7 % 96 + 32
    history = torch.zeros(HISTORY, sequences, CONTEXT, dtype=torch.long)
    for back in range(HISTORY):
        history[back, :, back:] = data[:, : CONTEXT - back]
    return history, data[:, 1:].reshape(-1)


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
    name, step = make(Gpt(layers, width), args.zero)
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

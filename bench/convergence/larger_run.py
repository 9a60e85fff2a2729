#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a GPT of 100 million parameters in one way:

    torchrun --nproc-per-node 2 larger_run.py --optimizer onebit_adam --data FILE...

Each rank takes 512 bytes of text per step. Ranks compute on their device if torch finds
one, and otherwise on the CPU. A checkpoint is saved every 100 steps, and the same command
resumes from the last one. losses.jsonl has a line for each step.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import thinwire
import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).resolve().parents[2] / "python" / "demo"))
from gpt import Gpt, inputs_of
from text_data import TextData

LAYERS, WIDTH, CONTEXT, SEED = 14, 768, 512, 1
RATE, WARMUP_STEPS = 3e-4, 50
SAVE_EVERY = 100
KINDS = {"adam": "AdamW", "onebit_adam": "OneBitAdam"}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--optimizer", choices=[*KINDS], required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the results"
    )
    return parser.parse_args()


def device_of_rank():
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator().type
    number = int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count()
    torch.accelerator.set_device_index(number)
    return torch.device(kind, number)


def engine_for(given, model):
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": KINDS[given.optimizer], "params": {"lr": RATE}},
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
    }
    if given.optimizer == "onebit_adam":
        # This chooses the freeze step and a warm-up over 8 bits.
        config["thinwire"] = {"total_steps": given.steps}
    return thinwire.initialize(model=model, config=config)[0]


def main():
    given = parse()
    thinwire.init_distributed("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = device_of_rank()
    text = TextData(given.data, CONTEXT)
    model = Gpt(given.layers, WIDTH, CONTEXT)
    model.initialize(SEED)
    parameters = sum(p.numel() for p in model.parameters())
    engine = engine_for(given, model.to(device))
    checkpoints, record = given.out / "checkpoints", given.out / "losses.jsonl"
    given.out.mkdir(parents=True, exist_ok=True)
    rows = []
    if checkpoints.is_dir():
        engine.load_checkpoint(str(checkpoints))
    if rank == 0:
        print(f"{parameters} parameters, {engine.global_steps} steps done", flush=True)
        if record.exists():
            lines = record.read_text().splitlines()[: engine.global_steps]
            rows = [json.loads(line) for line in lines]
    for step in range(engine.global_steps + 1, given.steps + 1):
        begin = time.perf_counter()
        batch = text.training_batch(SEED, step, rank, world, 1)
        history, targets = (part.to(device) for part in inputs_of(batch))
        for group in engine.optimizer.param_groups:
            group["lr"] = RATE * min(1.0, step / WARMUP_STEPS)
        loss = engine(history, targets)
        engine.backward(loss)
        engine.step()
        mean = engine.mean(loss.item())
        seconds = time.perf_counter() - begin
        sent = engine.report.bytes_sent
        if rank == 0:
            row = {"step": step, "loss": mean, "bytes": sent, "seconds": seconds}
            rows.append(row)
            if step % 10 == 0:
                print(json.dumps(row), flush=True)
        if step % SAVE_EVERY == 0:
            engine.save_checkpoint(str(checkpoints))
            if rank == 0:
                record.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
# Runs on one machine with the first command, or on two with 4 GPUs each:
#
#   torchrun --nproc-per-node 1 on_a_device.py
#   torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d \
#     --rdzv-endpoint host1:29500 on_a_device.py --zero 2
#
# Each rank trains on the device of its local rank, or on the CPU if there is none.
import argparse
import os

import thinwire
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--zero", type=int, help="use initialize() with this stage of ZeRO")
parser.add_argument("--steps", type=int, default=300)
given = parser.parse_args()

thinwire.init_distributed("gloo")
rank = torch.distributed.get_rank()
device = torch.device("cpu")
if torch.accelerator.is_available():
    kind = torch.accelerator.current_accelerator().type
    number = int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count()
    device = torch.device(kind, number)
    torch.accelerator.set_device_index(number)

torch.manual_seed(0)
model = torch.nn.Linear(64, 64).to(device)
if given.zero is None:
    optimizer = thinwire.OnebitAdam(model.parameters(), lr=1e-3, freeze_step=100)
else:
    # Sends four bits per element, and divides states among the ranks.
    config = {
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": given.zero},
        "thinwire": {"zero_bits_up": 4, "zero_bits_down": 4},
    }
    engine, *_ = thinwire.initialize(model=model, config=config)
torch.manual_seed(rank)  # every rank has different data
for step in range(given.steps):
    x = torch.randn(32, 64).to(device)
    loss = (model(x) - x.sin()).square().mean()
    if given.zero is None:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        report = optimizer.report
    else:
        engine.backward(loss)
        engine.step()
        report = engine.report
    if step % 100 == 99 and rank == 0:
        sent = report.bytes_sent
        print(f"step {step + 1} on {device}: loss {loss.item():.3f}, {sent} bytes sent")

# SPDX-License-Identifier: Apache-2.0
# torchrun --nproc-per-node 2 outer_loop.py
"""Local steps of 1-bit Adam, and every fifteenth step an exchange."""

import thinwire
import torch

thinwire.init_distributed("gloo")
rank = torch.distributed.get_rank()
model = torch.nn.Linear(64, 64)
optimizer = thinwire.OnebitAdam(
    model.parameters(),
    lr=1e-3,
    total_steps=450,
    outer={"sync_every": 15, "learning_rate": 0.7, "momentum": 0.6, "warmup_bits": 4},
)
torch.manual_seed(rank)  # every rank has different data
for step in range(1, 451):
    x = torch.randn(32, 64)
    loss = (model(x) - x.sin()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    report = optimizer.report
    if report.phase != "local" and step % 90 == 0 and rank == 0:
        print(
            f"step {step}: {report.phase}, {report.bytes_sent} bytes, "
            f"drift {report.drift:.2f}"
        )
with optimizer.evaluation():  # all ranks have the same parameters here
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(9))
    loss = (model(x) - x.sin()).square().mean()
    if rank == 0:
        sent = optimizer.totals.bytes_sent
        print(f"loss {loss.item():.3f}, {sent} bytes sent in all")

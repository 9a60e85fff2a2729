# SPDX-License-Identifier: Apache-2.0
"""A loop with Hugging Face Accelerate and 1-bit Adam.

torchrun --nproc-per-node 2 accelerate_loop.py [--epochs N] [--out DIR]
"""

import argparse

import thinwire
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--out", default="out/accelerate")
given = parser.parse_args()

accelerator = Accelerator(cpu=True)
thinwire.integrations.accelerate.attach(accelerator)
x = torch.randn(4096, 64, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, x.sin().mean(1, keepdim=True))
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)
)
optimizer = thinwire.OnebitAdam(
    model.parameters(), lr=1e-3, freeze_step=40, max_grad_norm=1.0
)
wrapped, prepared, loader = accelerator.prepare(
    model, optimizer, DataLoader(data, batch_size=32, shuffle=True)
)
for _ in range(given.epochs):
    for inputs, target in loader:
        loss = torch.nn.functional.mse_loss(wrapped(inputs), target)
        accelerator.backward(loss)
        prepared.step()
        prepared.zero_grad()
    report = optimizer.report
    accelerator.print(
        f"loss {loss.item():.3f}, {report.phase}, {report.bytes_sent} bytes sent"
    )
accelerator.save_state(given.out)

# SPDX-License-Identifier: Apache-2.0
"""A loop with FSDP2 (fully_shard) and torch's optimizer, whose gradients are sent in 8 or
4 bits. Needs torch 2.13 or 2.14.

torchrun --nproc-per-node 2 fsdp_hook.py [--steps N] [--bits 4]
"""

import argparse

import thinwire
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--bits", type=int, default=8)
given = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64)
)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
fully_shard(model[0], mesh=mesh)
fully_shard(model, mesh=mesh)
hook = thinwire.fsdp_hook(model, bits=given.bits)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if dist.get_rank() == 0:
    print(hook)
for step in range(given.steps):
    torch.manual_seed(1000 * step + dist.get_rank())  # every rank has its own data
    x = torch.randn(32, 64)
    loss = (model(x) - x.sin()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0 and step in (0, given.steps - 1):
        print(f"step {step + 1}: loss {loss:.3f}, {hook.bytes_sent} bytes")
hook.close()
dist.destroy_process_group()

# SPDX-License-Identifier: Apache-2.0
"""A loop with DistributedDataParallel and torch's optimizer, whose gradients are sent
in 8 or 4 bits. Resumes from its checkpoint, on any number of ranks.

torchrun --nproc-per-node 2 ddp_hook.py [--steps N] [--bits 8] [--out DIR]
"""

import argparse
import os

import thinwire
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--bits", type=int, default=4)
parser.add_argument("--out", default="out/ddp_hook")
given = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64)
)
ddp = DistributedDataParallel(model)
hook = thinwire.ddp_hook(ddp, bits=given.bits)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
first, path = 0, os.path.join(given.out, "checkpoint.pt")
if os.path.exists(path):
    saved = torch.load(path)
    first = saved["step"]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    hook.load_state_dict(saved["hook"])
if dist.get_rank() == 0:
    print(hook)
for step in range(first, given.steps):
    torch.manual_seed(1000 * step + dist.get_rank())  # every rank has its own data
    x = torch.randn(32, 64)
    loss = (ddp(x) - x.sin()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
state = {
    "step": max(first, given.steps),
    "model": model.state_dict(),
    "optimizer": optimizer.state_dict(),
    "hook": hook.state_dict(),  # collective: all ranks call it
}
if dist.get_rank() == 0:
    os.makedirs(given.out, exist_ok=True)
    torch.save(state, path)
    if first >= given.steps:
        print(f"all {given.steps} steps were done before")
    else:
        sent = hook.report.bytes_sent
        print(f"steps {first + 1} to {given.steps}: loss {loss:.3f}, {sent} bytes")
hook.close()
dist.destroy_process_group()

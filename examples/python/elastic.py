# SPDX-License-Identifier: Apache-2.0
"""A loop that saves itself and, started again, resumes on any number of ranks.

torchrun --max-restarts 3 --nproc-per-node 2 elastic.py [--steps N] [--out DIR]

If a rank dies, torchrun starts all ranks again, at most three times. With as many ranks
as before, the run ends with the bits of an undisturbed run. Rank 0 prints for each start
which checkpoint it resumes from.
"""

import argparse
import json
import os

import thinwire
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--out", default="out/elastic")
given = parser.parse_args()

thinwire.init_distributed("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)
)
optimizer = thinwire.OnebitAdam(model.parameters(), lr=1e-3, freeze_step=100)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
rank, ranks, begin = dist.get_rank(), dist.get_world_size(), 0
found = thinwire.resume(given.out, optimizer, module=model)
if found:
    begin = found.extra["step"]
    scheduler.load_state_dict(json.loads(found.extra["scheduler"]))
if rank == 0:
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT")  # None without torchrun
    start = f"restart {restart}" if restart else "start"
    source = (
        f"after step {begin} of world size {found.world}" if found else "from nothing"
    )
    print(f"{start}: world size {ranks}, resumes {source}", flush=True)
for step in range(begin + 1, given.steps + 1):
    torch.manual_seed(step * ranks + rank)  # other data for each
    x = torch.randn(32, 64)
    loss = (model(x) - x.sin().mean(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    if rank == 0 and (step % 50 == 0 or step == given.steps):
        print(f"step {step}: loss {loss.item():.6f}", flush=True)
    if step % 100 == 0:
        extra = {"step": step, "scheduler": json.dumps(scheduler.state_dict())}
        thinwire.save(given.out, optimizer, extra=extra, module=model)
if rank == 0:
    print(f"done: {given.steps} steps")

# SPDX-License-Identifier: Apache-2.0
# torchrun --nproc-per-node 2 ten_lines.py
import thinwire
import torch
import torch.distributed as dist

thinwire.init_distributed("gloo")
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)
)
optimizer = thinwire.OnebitAdam(
    model.parameters(), lr=1e-3, freeze_step=100, max_grad_norm=1.0
)
torch.manual_seed(dist.get_rank())  # every rank has data of its own
for step in range(300):
    x = torch.randn(32, 64)
    loss = (model(x) - x.sin().mean(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 99 and dist.get_rank() == 0:
        sent = optimizer.report.bytes_sent
        print(f"step {step + 1}: loss {loss.item():.3f}, {sent} bytes sent")

# SPDX-License-Identifier: Apache-2.0
# torchrun --nproc-per-node 2 ten_lines.py
import thinwire
import torch

thinwire.init_distributed("gloo")
model = torch.nn.Linear(64, 64)
optimizer = thinwire.OnebitAdam(model.parameters(), lr=1e-3, total_steps=300)
torch.manual_seed(torch.distributed.get_rank())  # every rank has data of its own
for step in range(300):
    x = torch.randn(32, 64)
    loss = (model(x) - x.sin()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 49 and torch.distributed.get_rank() == 0:
        sent = optimizer.report.bytes_sent
        print(f"step {step + 1}: loss {loss.item():.3f}, {sent} bytes sent")

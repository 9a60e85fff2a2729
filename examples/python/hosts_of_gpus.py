# SPDX-License-Identifier: Apache-2.0
# Runs on two machines of four GPUs each, with this command on both:
#
#   torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d \
#     --rdzv-endpoint host1:29500 hosts_of_gpus.py
#
# NCCL (or HCCL, XCCL) sums gradients inside a machine. The first rank of each machine
# then exchanges one bit per element with the other machine.
import os

import thinwire
import torch

thinwire.init_distributed("gloo")
rank = torch.distributed.get_rank()
kind = torch.accelerator.current_accelerator().type
number = int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count()
torch.accelerator.set_device_index(number)
device = torch.device(kind, number)

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64)
).to(device)
config = {
    "train_micro_batch_size_per_gpu": 32,
    "optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3, "freeze_step": 50}},
}
engine, *_ = thinwire.initialize(model=model, config=config)
torch.manual_seed(rank)  # every rank has different data
for step in range(150):
    x = torch.randn(32, 64).to(device)
    loss = (engine(x) - x.sin()).square().mean()
    engine.backward(loss)
    engine.step()
    if step % 50 == 49:
        mean, sent = engine.mean(loss), engine.report.bytes_sent
        if rank == 0:
            print(f"step {step + 1}: loss {mean:.3f}, {sent} bytes to other machines")
engine.save_checkpoint(os.environ.get("OUT", "out"))
engine.destroy()

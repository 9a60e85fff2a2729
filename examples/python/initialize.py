# SPDX-License-Identifier: Apache-2.0
"""A loop in DeepSpeed's style: ds_config.json holds everything except the model.

torchrun --nproc-per-node 2 initialize.py --deepspeed_config ds_config.json
"""

import argparse

import thinwire
import torch
from torch.utils.data import TensorDataset


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(64, 256)
        self.out = torch.nn.Linear(256, 1)

    def forward(self, x, target):
        x = x.to(self.hidden.weight.dtype)  # fp16 or bf16, if the file says so
        return torch.nn.functional.mse_loss(
            self.out(self.hidden(x).tanh()).float(), target
        )


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--out", default="out/initialize")
thinwire.add_config_arguments(parser)
args = parser.parse_args()
thinwire.init_distributed()

x = torch.randn(4096, 64, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, x.sin().mean(1, keepdim=True))
model = Model()
engine, optimizer, loader, _ = thinwire.initialize(
    args=args, model=model, model_parameters=model.parameters(), training_data=data
)
for epoch in range(args.epochs):
    loader.sampler.set_epoch(epoch)
    for batch in loader:
        loss = engine(*batch)
        engine.backward(loss)
        engine.step()
    if engine.global_rank == 0:
        report = engine.report
        print(
            f"step {engine.global_steps}: loss {loss.item():.3f}, "
            f"{report.phase}, {report.bytes_sent} bytes sent"
        )
engine.save_checkpoint(args.out)
engine.destroy()

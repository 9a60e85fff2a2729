# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer with 1-bit Adam. Resumes from its newest checkpoint, on any
number of ranks.

python lightning_loop.py [--steps N] [--out DIR] [--ranks N]
"""

import argparse
import os

import lightning
import thinwire
import torch
from thinwire.integrations.lightning import Checkpoint, strategy
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--out", default="out/lightning")
parser.add_argument("--ranks", type=int, default=2)
given = parser.parse_args()


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)
        )

    def training_step(self, batch, _):
        inputs, target = batch
        return torch.nn.functional.mse_loss(self.net(inputs), target)

    def configure_optimizers(self):
        # The constructor is collective: it must be called here, by all ranks.
        return thinwire.OnebitAdam(self.parameters(), lr=1e-3, freeze_step=40)


x = torch.randn(4096, 64, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, x.sin().mean(1, keepdim=True))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=given.ranks,
    strategy=strategy(),
    callbacks=[Checkpoint(given.out, save_last=True, every_n_train_steps=50)],
    gradient_clip_val=1.0,
    max_epochs=-1,
    max_steps=given.steps,
    logger=False,
    enable_progress_bar=False,
)
last = os.path.join(given.out, "last.ckpt")
trainer.fit(
    module := Module(),
    DataLoader(data, batch_size=32, shuffle=True),
    ckpt_path=last if os.path.exists(last) else None,
)
if trainer.is_global_zero:
    report = module.optimizers().optimizer.report
    print(f"last step: {report.phase}, {report.bytes_sent} bytes sent")

# SPDX-License-Identifier: Apache-2.0
"""A small ResNet under DistributedDataParallel and torch's SGD. One line makes its
gradients travel in 8 or 4 bits. The images are stripes that the program draws.

torchrun --nproc-per-node 2 ddp_resnet.py [--epochs N] [--bits 8]
"""

import argparse
import math

import thinwire
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--bits", type=int, default=4)
given = parser.parse_args()


def stripes(images: int, seed: int) -> TensorDataset:
    """Draws noisy stripes in four directions, which are the classes."""
    random = torch.Generator().manual_seed(seed)
    direction = torch.arange(images) % 4
    angle = (direction * math.pi / 4).view(-1, 1, 1)
    place = torch.arange(16.0)
    across = place.view(16, 1) * angle.cos() + place * angle.sin()
    wave = torch.sin(across + 6 * torch.rand(images, 1, 1, generator=random))
    noise = torch.randn(images, 3, 16, 16, generator=random)
    return TensorDataset(wave.unsqueeze(1) + noise, direction)


class Block(nn.Module):
    def __init__(self, channels: int, to: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, to, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(to),
            nn.ReLU(),
            nn.Conv2d(to, to, 3, padding=1, bias=False),
            nn.BatchNorm2d(to),
        )
        self.shortcut = nn.Sequential(
            nn.Conv2d(channels, to, 1, stride=2, bias=False), nn.BatchNorm2d(to)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1, bias=False),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    Block(8, 16),
    Block(16, 32),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 4),
)
ddp = DistributedDataParallel(model)
hook = thinwire.ddp_hook(ddp, bits=given.bits)  # the only line that DDP does not need
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
images, others = stripes(1024, seed=1), stripes(256, seed=2)
sampler = DistributedSampler(images)
if dist.get_rank() == 0:
    print(hook)
for epoch in range(given.epochs):
    sampler.set_epoch(epoch)
    for x, label in DataLoader(images, batch_size=16, sampler=sampler):
        loss = nn.functional.cross_entropy(ddp(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            x, label = others.tensors
            right = (model(x).argmax(1) == label).float().mean()
        model.train()
        print(f"epoch {epoch + 1}: loss {loss:.3f}, accuracy {right:.3f}")
if dist.get_rank() == 0:
    print(f"{hook.report.bytes_sent} bytes in the last step")
hook.close()
dist.destroy_process_group()

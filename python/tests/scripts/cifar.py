# SPDX-License-Identifier: Apache-2.0
"""In the form of DeepSpeed's CIFAR-10 tutorial; synthetic images. Of it, only the import
was changed."""

import argparse
import json

import thinwire as deepspeed
import torch
import torch.nn.functional as F
from torch import nn


def add_argument():
    parser = argparse.ArgumentParser(description="CIFAR")
    parser.add_argument("-e", "--epochs", default=2, type=int)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--save", type=str, default="")
    parser = deepspeed.add_config_arguments(parser)
    return parser.parse_args()


class Images(torch.utils.data.Dataset):
    """Four kinds of noisy stripes."""

    def __init__(self, size=96):
        generator = torch.Generator().manual_seed(3)
        self.labels = torch.randint(0, 4, (size,), generator=generator)
        waves = torch.arange(16) * (self.labels[:, None] + 1) * 0.4
        stripes = torch.sin(waves)[:, None, None, :].expand(-1, 3, 16, -1)
        noise = torch.randn(size, 3, 16, 16, generator=generator)
        self.images = stripes + 0.3 * noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.norm = nn.BatchNorm2d(6)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 8, 3)
        self.fc1 = nn.Linear(8 * 2 * 2, 16)
        self.fc2 = nn.Linear(16, 4)

    def forward(self, x):
        x = self.pool(F.relu(self.norm(self.conv1(x))))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        return self.fc2(F.relu(self.fc1(x)))


def main():
    args = add_argument()
    deepspeed.init_distributed()
    torch.manual_seed(torch.distributed.get_rank())
    net = Net()
    parameters = filter(lambda p: p.requires_grad, net.parameters())
    model_engine, _optimizer, trainloader, __ = deepspeed.initialize(
        args=args, model=net, model_parameters=parameters, training_data=Images()
    )
    local_device, local_rank = model_engine.device, model_engine.local_rank
    target_dtype = None
    if model_engine.bfloat16_enabled():
        target_dtype = torch.bfloat16
    elif model_engine.fp16_enabled():
        target_dtype = torch.half
    criterion = nn.CrossEntropyLoss()

    losses = []
    for epoch in range(args.epochs):
        for i, data in enumerate(trainloader):
            inputs, labels = data[0].to(local_device), data[1].to(local_device)
            if target_dtype is not None:
                inputs = inputs.to(target_dtype)
            outputs = model_engine(inputs)
            loss = criterion(outputs, labels)
            model_engine.backward(loss)
            model_engine.step()
            losses.append(loss.item())

    if args.save:
        model_engine.save_checkpoint(args.save, client_state={"epoch": args.epochs})
        _, client_sd = model_engine.load_checkpoint(args.save)
        assert client_sd == {"epoch": args.epochs}
    values = torch.cat([p.detach().float().flatten() for p in net.parameters()])
    result = {
        "losses": losses,
        "steps": model_engine.global_steps,
        "samples": model_engine.global_samples,
        "sum": float(values.double().sum()),
        "rank": local_rank,
        "phase": model_engine.report.phase,
        "lr": model_engine.get_lr(),
        "batches": len(trainloader),
    }
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Two ways to train the same model on the same batches: torch's AdamW under
DistributedDataParallel, and thinwire.OnebitAdam on the plain module."""

import thinwire
import torch
import torch.distributed as dist
from recipe import BETAS, CLIP, EPSILON, RATE
from torch.nn.parallel import DistributedDataParallel

COMMON = {"lr": RATE, "betas": BETAS, "eps": EPSILON, "weight_decay": 0.0}


class AdamW:
    name = "adamw"

    def __init__(self, model, freeze_step):
        self.forward = DistributedDataParallel(model)
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), **COMMON)
        # gloo counts nothing. In a ring every element leaves a rank
        # 2 (W - 1) / W times.
        world = dist.get_world_size()
        params = sum(p.numel() for p in model.parameters())
        self.of_ring = 4 * params * 2 * (world - 1) // world

    def step(self):
        """Phase, and the bytes that this rank has sent."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return "exact", self.of_ring


class OnebitAdam:
    name = "onebit_adam"

    def __init__(self, model, freeze_step):
        self.forward = model
        self.optimizer = thinwire.OnebitAdam(
            model.parameters(),
            freeze_step=freeze_step,
            warmup_bits=8,
            max_grad_norm=CLIP,
            **COMMON,
        )

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        report = self.optimizer.report
        return report.phase, report.bytes_sent


WAYS = {way.name: way for way in (AdamW, OnebitAdam)}

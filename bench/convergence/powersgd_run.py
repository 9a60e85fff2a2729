# SPDX-License-Identifier: Apache-2.0
"""One run of powersgd.py, as a rank of torchrun: the demo's training in plain PyTorch
(python/demo) with one more communication hook."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "demo"))

import recipe
import thinwire
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from train_gpt import Run
from ways import WAYS, AdamW

SEQUENCES = 32  # of a step, on all ranks together, like the demo
EARLY_START = 2  # DDP lays out its buckets anew after its first step


class PowerSgd(AdamW):
    def __init__(self, model, rank, start):
        super().__init__(model, 0)
        # Over gloo, ranks disagree about the order of the hook's exchanges unless one
        # bucket holds all.
        self.forward = DistributedDataParallel(model, bucket_cap_mb=1024)
        self.state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=start,
        )
        self.forward.register_comm_hook(self.state, powerSGD_hook.powerSGD_hook)
        self.elements = 0  # elements that the hook has averaged so far

    def step(self):
        phase, of_ring = super().step()
        elements = self.state.compression_stats()[2] - self.elements
        if elements == 0:  # the hook has not started
            return phase, of_ring
        self.elements += elements
        world = dist.get_world_size()
        return "compressed", 4 * elements * 2 * (world - 1) // world


class LowBitHook(AdamW):
    def __init__(self, model, bits):
        super().__init__(model, 0)
        self.forward = DistributedDataParallel(model)
        self.hook = thinwire.ddp_hook(self.forward, bits)

    def step(self):
        super().step()
        return "compressed", self.hook.report.bytes_sent


def way(name):
    """Takes a way of the demo's: ddp, hook8, or rank1_early and the like."""
    if name == "ddp":
        return AdamW
    if name.startswith("hook"):
        return lambda model, _: LowBitHook(model, int(name.removeprefix("hook")))
    rank, start = name.removeprefix("rank").split("_")
    return lambda model, freeze_step: PowerSgd(
        model, int(rank), EARLY_START if start == "early" else freeze_step
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--data", nargs="+", required=True)
    given = parser.parse_args()
    WAYS[given.way] = way(given.way)
    given.optimizer = given.way
    given.layers, given.width = recipe.LAYERS, recipe.WIDTH
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    given.batch = SEQUENCES // dist.get_world_size()
    run = Run(given)
    run.take_steps()
    if run.record:
        run.record.finish({"optimizer": given.way, "ranks": run.world})
    del run  # like the demo's program
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

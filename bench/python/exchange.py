#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times an exchange through a process group beside torch's own all_to_all_single.

    PYTHONPATH=python torchrun --nproc-per-node 2 bench/python/exchange.py [--rounds 30]

Every rank sends the named bytes to each other rank. Both ways take turns in one run,
round by round, over gloo. Wall is the time of one exchange, the median over all and the
best tenth. CPU is the time of all threads of a rank per exchange, the mean of the
ranks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from thinwire import _core, comm

# Bytes per peer: exchanges per round.
SIZES = {8: 40, 64 << 10: 40, 1 << 20: 10, 8 << 20: 3}


class Way:
    """One way to exchange, and its measurements."""

    def __init__(self, name: str, exchange: Callable[[], object]) -> None:
        self.name, self.exchange = name, exchange
        self.walls: list[float] = []
        self.cpu = 0.0

    def run(self, count: int) -> None:
        begin = time.process_time()
        for _ in range(count):
            start = time.perf_counter()
            self.exchange()
            self.walls.append(time.perf_counter() - start)
        self.cpu += time.process_time() - begin

    def row(self, size: int) -> str:
        micro = [1e6 * wall for wall in sorted(self.walls)]
        cpu = torch.tensor([1e6 * self.cpu / len(micro)])
        dist.all_reduce(cpu)
        return (
            f"{size:>9}  {self.name:<18}  {statistics.median(micro):>9.0f}"
            f"  {micro[len(micro) // 10]:>9.0f}  {cpu.item() / dist.get_world_size():>9.0f}"
        )


def measure(group: _core.Communicator, size: int, rounds: int) -> list[str]:
    sent = torch.zeros(group.size * size, dtype=torch.uint8)
    ours, theirs = torch.empty_like(sent), torch.empty_like(sent)
    ways = [
        Way("thinwire", lambda: group.all_to_all(sent, ours)),
        Way("all_to_all_single", lambda: dist.all_to_all_single(theirs, sent)),
    ]
    for way in ways:
        way.exchange()
    for _ in range(rounds):
        for way in ways:
            dist.barrier()
            way.run(SIZES[size])
    return [way.row(size) for way in ways]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group = comm.communicator_for()
    if group.rank == 0:
        print(f"{_core.processor()}, {group.size} ranks, microseconds", flush=True)
        print(f"{'bytes':>9}  {'':<18}  {'median':>9}  {'best 10th':>9}  {'CPU':>9}")
    for size in SIZES:
        rows = measure(group, size, rounds)
        if group.rank == 0:
            print(*rows, sep="\n", flush=True)
    group.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

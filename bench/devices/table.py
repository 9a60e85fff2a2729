#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what a step of 1-bit Adam with a bf16 model on a device costs, computed from bytes.

usage: table.py [--host GB/S] [--pcie GB/S] [--hosts N] [--measure]

--measure takes the rate of host memory from passes over 400 MB on this machine, with all of
its cores, instead of --host. It then measures copies in this memory and compressed steps of two
ranks that share it, beside what is computed for them. No device is used.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

MODELS = {"125 M": 125e6, "340 M": 340e6, "1.3 B": 1.3e9}
# Payload per second of a link of so many Gbit/s: Ethernet, IP and TCP take the rest.
LINKS = {1: 0.118e9, 10: 1.18e9, 25: 2.9e9, 100: 11.6e9}
# Per parameter: passes of encoding, averaging and updating, and copies to and from the device.
PASSES, COPIES = 24.5, 4
# One bit and a share of a block's scale.
ONE_BIT = (1 + 32 / 1024) / 8
BF16 = 2


def exchange(count: float, size: float, hosts: int) -> str:
    """Returns the milliseconds of both phases of an average, for each link."""
    moved = 2 * count * size * (hosts - 1) / hosts
    return " / ".join(f"{1e3 * moved / rate:.0f}" for rate in LINKS.values())


def table(host: float = 100, pcie: float = 25, hosts: int = 4) -> str:
    """Returns the rows; rates are in GB/s."""
    links = f"{' / '.join(map(str, LINKS))} Gbit/s"
    heads = (
        *("parameters", "host memory", "parameters back"),
        *(f"1-bit exchange at {links}", f"exact bf16 exchange at {links}"),
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, count in MODELS.items():
        cells = (
            name,
            f"{1e3 * (PASSES + COPIES) * count / (host * 1e9):.0f}",
            f"{1e3 * BF16 * count / (pcie * 1e9):.0f}",
            exchange(count, ONE_BIT, hosts),
            exchange(count, BF16, hosts),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def fastest(body: Callable[[], object], rounds: int = 10) -> float:
    """Returns seconds of the fastest of some calls."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        body()
        best = min(best, time.perf_counter() - begin)
    return best


def measured() -> tuple[float, float]:
    """Returns GB/s of passes that read two arrays and write one, and of copies."""
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    a, b = torch.zeros(100_000_000), torch.ones(100_000_000)
    passes = 3 * a.nbytes / 1e9 / fastest(lambda: a.add_(b))
    return passes, 2 * a.nbytes / 1e9 / fastest(lambda: a.copy_(b))


def step_seconds(count: int) -> float:
    """Returns the time of a compressed step of two ranks, threads of this process, that have
    `count` bf16 parameters each."""
    import thinwire
    import torch

    best = [0.0, 0.0]

    def train(comm: thinwire.Communicator) -> None:
        weights = torch.nn.Parameter(torch.zeros(count, dtype=torch.bfloat16))
        optimizer = thinwire.OnebitAdam([weights], freeze_step=1, process_group=comm)

        def step() -> None:
            weights.grad = torch.full_like(weights, 0.5 + comm.rank)
            comm.barrier()
            begin = time.perf_counter()
            optimizer.step()
            taken.append(time.perf_counter() - begin)

        taken: list[float] = []
        for _ in range(8):
            step()
        best[comm.rank] = min(taken[2:])
        optimizer.close()

    thinwire.run_local_ranks(2, train)
    return max(best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", type=float, default=100.0, help="of its memory, GB/s")
    parser.add_argument("--pcie", type=float, default=25.0, help="one way, GB/s")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--measure", action="store_true")
    given = parser.parse_args()
    host, copies = measured() if given.measure else (given.host, given.host)
    print(
        f"host memory {host:.1f} GB/s, PCIe {given.pcie:.1f} GB/s, {given.hosts} hosts; ms"
    )
    print(table(host, given.pcie, given.hosts))
    if not given.measure:
        return
    count = 1 << 25
    moved = 2 * PASSES * count / 1e9
    print(
        f"\ncopies in host memory {copies:.1f} GB/s; a compressed step of two ranks with {count} "
        f"parameters each takes {1e3 * step_seconds(count):.0f} ms, and its passes by the rate of "
        f"host memory {1e3 * moved / host:.0f} ms"
    )


if __name__ == "__main__":
    main()

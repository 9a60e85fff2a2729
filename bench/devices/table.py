#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what a step of 1-bit Adam with a bf16 model on a device costs, computed from
bytes.

usage: table.py [--host GB/S] [--pcie GB/S] [--hosts N] [--measure]

--measure replaces --host: it measures the rate of host memory by passes over 400 MB, with
all cores of this machine. It then measures compressed steps of two ranks that share this
memory, and copies in it. It prints host passes, copies and exchange of a step apart, as
computed from bytes and as measured. No device is used.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import thinwire

MODELS = {"125 M": 125e6, "340 M": 340e6, "1.3 B": 1.3e9}
# Payload per second of a link by its Gbit/s; Ethernet, IP and TCP headers take the
# rest.
LINKS = {1: 0.118e9, 10: 1.18e9, 25: 2.9e9, 100: 11.6e9}
# Bytes per parameter of encoding, averaging and updating, and of copies to and from the
# device.
PASSES, COPIES = 24.5, 4
# One bit, and a share of a block's scale.
ONE_BIT = (1 + 32 / 1024) / 8
BF16 = 2


def exchange(count: float, size: float, hosts: int) -> str:
    """Returns the milliseconds of both phases of an average, for each link."""
    moved = sent(count, size, hosts)
    return " / ".join(f"{1e3 * moved / rate:.0f}" for rate in LINKS.values())


def sent(count: float, size: float, hosts: int) -> float:
    """Returns the bytes that a rank sends in both phases of an average."""
    return 2 * count * size * (hosts - 1) / hosts


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


def measured_step(count: int) -> list[thinwire.StepReport]:
    """Returns both ranks' reports of the fastest of some compressed steps. The ranks are
    threads of this process and have `count` bf16 parameters each."""
    import thinwire
    import torch

    def train(comm: thinwire.Communicator) -> list[thinwire.StepReport]:
        weights = torch.nn.Parameter(torch.zeros(count, dtype=torch.bfloat16))
        optimizer = thinwire.OnebitAdam([weights], freeze_step=1, process_group=comm)
        reports = []
        for _ in range(8):
            weights.grad = torch.full_like(weights, 0.5 + comm.rank)
            comm.barrier()
            optimizer.step()
            reports.append(optimizer.report)
        optimizer.close()
        return reports[2:]

    steps = zip(*thinwire.run_local_ranks(2, train), strict=True)
    return list(min(steps, key=lambda step: max(report.seconds for report in step)))


def copy_seconds(count: int) -> float:
    """Returns the time in which gradients and parameters of two such ranks are copied."""
    import torch

    a, b = (torch.zeros(2 * 2 * count, dtype=torch.bfloat16) for _ in range(2))
    return fastest(lambda: a.copy_(b))


def parts(count: int, host: float, copies: float) -> str:
    """Returns a table of the parts of a step of two ranks that share this memory."""
    step = measured_step(count)
    waits = [report.exchange_seconds for report in step]
    own = [report.seconds - report.exchange_seconds for report in step]
    of_exchange = 2 * sent(count, ONE_BIT, 2)
    rows = (
        ("host passes", 2 * PASSES * count, host, max(own)),
        # Copied bytes are read and written, and so are sent ones.
        ("copies", 2 * 2 * COPIES * count, copies, copy_seconds(count)),
        ("exchange", 2 * of_exchange, copies, min(waits)),
    )
    lines = ["| part | MB | computed, ms | measured, ms |", "|---|---|---|---|"]
    for name, size, rate, seconds in rows:
        computed = 1e3 * size / (rate * 1e9)
        lines.append(
            f"| {name} | {size / 1e6:.0f} | {computed:.1f} | {1e3 * seconds:.1f} |"
        )
    counted = sum(report.bytes_sent for report in step)
    lines.append(
        f"The ranks send {of_exchange / 1e6:.2f} MB as computed, {counted / 1e6:.2f} MB as "
        "counted. The measured exchange is the time in which the slower rank waits for the "
        "other one."
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--host", type=float, default=100.0, help="rate of host memory, GB/s"
    )
    parser.add_argument(
        "--pcie", type=float, default=25.0, help="rate in one direction, GB/s"
    )
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
    print(
        f"\na step of two ranks that share this memory, {count} bf16 parameters each; copies "
        f"{copies:.1f} GB/s"
    )
    print(parts(count, host, copies))


if __name__ == "__main__":
    main()

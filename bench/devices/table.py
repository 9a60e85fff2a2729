#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what a step of 1-bit Adam with a bf16 model on a device costs, computed from
bytes.

usage: table.py [--host GB/S] [--pcie GB/S] [--hosts N]

`thinwire plan --threads 0` measures the rate of host memory, and computes such a step for
other models.
"""

from __future__ import annotations

import argparse

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
    moved = 2 * count * size * (hosts - 1) / hosts  # by a rank
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--host", type=float, default=100.0, help="rate of host memory, GB/s"
    )
    parser.add_argument(
        "--pcie", type=float, default=25.0, help="rate in one direction, GB/s"
    )
    parser.add_argument("--hosts", type=int, default=4)
    given = parser.parse_args()
    print(f"host memory {given.host:.1f} GB/s, PCIe {given.pcie:.1f} GB/s, ", end="")
    print(f"{given.hosts} hosts; ms")
    print(table(given.host, given.pcie, given.hosts))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""One job on a device and on a CPU: averages go over the host path, and all bits are those
of a job on CPUs alone."""

from __future__ import annotations

from typing import Any

import device_cases as cases
import devices
import engines
import pytest

STEPS = 20
ENGINES: dict[str, dict[str, Any]] = {
    "Adam": engines.optimizer_of("AdamW"),
    "1-bit Adam bf16": engines.optimizer_of("OneBitAdam", freeze_step=8) | engines.BF16,
    "ZeRO-2 over 4 bits": engines.optimizer_of("AdamW")
    | engines.zero(2)
    | cases.FEW_BITS,
}
OPTIMIZERS = ("OnebitAdam fp32", "LeanOnebitAdam bf16", "OnebitAdam fp16 scaled")


def train(places: list[str]) -> dict[str, Any]:
    """Losses and parameters of this rank; `places` has a place for each."""
    with cases.joined() as (comm, device):
        where = device if places[comm.rank] == "device" else "cpu"
        found = {
            name: cases.train_engine(comm, config, where, STEPS)
            for name, config in ENGINES.items()
        }
        for name in OPTIMIZERS:
            found[name] = cases.train_optimizer(comm, name, where, STEPS)
        return {
            name: [losses, [float(x).hex() for x in values]]
            for name, (losses, values) in found.items()
        }


@pytest.mark.parametrize("n", [2, 4])
def test_a_device_and_a_cpu_train_as_two_cpus(n: int) -> None:
    """On 4 ranks, one of two hosts has devices."""
    host = {"THINWIRE_RANKS_PER_HOST": "2"} if n == 4 else {}
    mixed = ["device"] * (n // 2) + ["cpu"] * (n // 2)
    found = devices.run(n, __file__, "train", mixed, **host)
    expected = devices.run(n, __file__, "train", ["cpu"] * n, **host)
    size = sum(p.numel() for p in engines.Net().parameters())
    for name in expected[0]:
        # Buffers, which come after the parameters, belong to their rank.
        values = [own[name][1][:size] for own in found]
        assert all(own == values[0] for own in values), name
        for ours, theirs in zip(found, expected, strict=True):
            assert ours[name] == theirs[name], name

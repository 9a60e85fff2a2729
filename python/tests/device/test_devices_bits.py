# SPDX-License-Identifier: Apache-2.0
"""What is trained on a device has the bits of the CPU: every optimizer in every precision,
alone, in an engine, with ZeRO, offload, accumulation and few bits."""

from __future__ import annotations

import logging

import device_cases
import devices
import pytest

SAME: dict[str, str] = {}


def require_same(n: int, function: str, wanted: str, seconds: float = 110) -> None:
    for found in devices.run(
        n, device_cases.__file__, function, wanted, seconds=seconds
    ):
        assert found and {k: v for k, v in found.items() if v} == SAME, found


@pytest.mark.parametrize("kind", [*device_cases.OPTIMIZERS, "lean", "4 bits"])
def test_an_engine_on_two_ranks(kind: str) -> None:
    require_same(2, "engine_differences", kind)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_an_optimizer_in_a_plain_loop_on_two_ranks(precision: str) -> None:
    require_same(2, "optimizer_differences", precision)


def test_alone() -> None:
    require_same(1, "engine_differences", "AdamW")
    require_same(1, "optimizer_differences", "OnebitAdam")


def test_two_ranks_on_each_of_two_hosts() -> None:
    require_same(4, "engine_differences", "on two hosts")
    require_same(4, "optimizer_differences", "hosts")


def said_of_hosts() -> list[str]:
    """Lines of the log about leaders, of an optimizer on the CPU and of one on the device."""
    lines = devices.told(logging.INFO)
    with device_cases.joined() as (comm, device):
        for where in ("cpu", device):
            name = "OnebitAdam fp32 hosts"
            device_cases.train_optimizer(comm, name, where, steps=1)
    return [line for line in lines if "leader" in line]


def test_an_optimizer_in_a_plain_loop_says_that_it_has_no_leaders() -> None:
    first, *others = devices.run(4, __file__, "said_of_hosts")
    (line,) = first
    assert line.startswith("OnebitAdam: 2 ranks share a host, and each updates all")
    assert others == [[], [], []]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("function", ["engine_differences", "optimizer_differences"])
def test_four_ranks(function: str) -> None:
    require_same(4, function, "", seconds=570)

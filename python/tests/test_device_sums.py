# SPDX-License-Identifier: Apache-2.0
"""The device path where its bits are not the C++ library's: sums and averages in the device's
own order, and torch.compile. And over a process group, where they are."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import ranks
import torch
from device_runs import SPECS, config_of, gradient, on_ranks, options_of, parameters
from thinwire import _core, comm
from thinwire.device import codec, make_optimizer
from thinwire.device.base import DeviceOptimizer
from thinwire.device.sums import row_sums, squares, total_squares

KINDS = ["Adam", "Lamb", "OnebitAdam", "OnebitLamb", "ZeroOneAdam"]


def random_rows(rows: int) -> torch.Tensor:
    """Of magnitudes far apart."""
    random = torch.Generator().manual_seed(rows)
    exponents = torch.rand(rows, 1024, generator=random) * 12 - 6
    return torch.randn(rows, 1024, generator=random) * 10**exponents


@pytest.mark.quick
def test_ordered_sums_are_those_of_the_definition() -> None:
    values = random_rows(3)
    found = squares(values, True)
    for row, total in zip(values.tolist(), found.tolist(), strict=True):
        lanes = [0.0] * 16
        for i, x in enumerate(row):
            lanes[i % 16] += x * x
        for half in (8, 4, 2, 1):
            lanes = [lanes[i] + lanes[i + half] for i in range(half)]
        assert total == lanes[0]


@pytest.mark.quick
def test_groups_of_chunks_are_added_one_after_the_other() -> None:
    values = torch.randn(1024 * 1024 + 5000, generator=torch.Generator().manual_seed(1))
    sums = squares(torch.nn.functional.pad(values, (0, 120)).view(-1, 1024), True)
    groups = row_sums(torch.nn.functional.pad(sums, (0, 1019)).view(2, 1024), True)
    assert total_squares(values).item() == groups[0].item() + groups[1].item()


def ulps(a: torch.Tensor, b: torch.Tensor) -> int:
    """Of positive floats: how many lie between."""
    return int((a.view(torch.int32) - b.view(torch.int32)).abs().max())


@pytest.mark.quick
@pytest.mark.parametrize("l1", [False, True])
def test_scales_of_plain_sums_are_within_two_ulp(l1: bool) -> None:
    """Sums of 1024 positive doubles in two orders differ by at most 2^-42 of themselves, so
    their roots round to the same float or to neighbours, 2^-23 apart; divided by one float that
    is two ulp of the quotient at most."""
    c = random_rows(500)
    active = torch.rand(c.shape, generator=torch.Generator().manual_seed(1)) < 0.9
    divisor = codec.scale_divisors(active.sum(1), l1)
    ordered = codec.encode(c, active, divisor, True, l1)
    plain = codec.encode(c, active, divisor, False, l1)
    scales = [codec.decode(record)[0] for _, record in (ordered, plain)]
    assert 0 <= ulps(*scales) <= 2
    assert torch.equal(ordered[1][:, 4:], plain[1][:, 4:])  # signs do not depend on it
    assert bool(((ordered[0] - plain[0]).abs() <= 2e-6 * (c.abs() + scales[0])).all())


@pytest.mark.long
def test_encode_is_the_same_compiled() -> None:
    c = random_rows(97)
    active = torch.rand(c.shape, generator=torch.Generator().manual_seed(1)) < 0.9
    divisor = codec.scale_divisors(active.sum(1), False)
    compiled = torch.compile(codec.encode)
    eager = codec.encode(c, active, divisor, False, False)
    for own, other in zip(
        compiled(c, active, divisor, False, False), eager, strict=True
    ):
        assert torch.equal(own.view(torch.uint8), other.view(torch.uint8))


# ---- a whole training

NET = [("w1", (32, 16), 0), ("b1", (32,), 0), ("w2", (1, 32), 0), ("b2", (1,), 0)]


def loss_of(
    flat: torch.Tensor, optimizer: DeviceOptimizer, x: torch.Tensor, y: torch.Tensor
):
    rows = optimizer.model.rows
    w1, b1, w2, b2 = (
        flat[at : at + size].view(shape)
        for at, size, (_, shape, _) in zip(rows.offsets, rows.sizes, NET, strict=True)
    )
    out = torch.tanh(x @ w1.T + b1) @ w2.T + b2
    return (out[:, 0] - y).square().mean()


def final_loss(kind: str, ordered: bool) -> float:
    """Mean over the last 50 of 250 steps, of a regression with noise; each rank has its own
    samples."""

    def run(first: _core.Communicator, _: _core.Communicator) -> float:
        options = options_of(kind, learning_rate=2e-2, freeze_step=60)
        optimizer = make_optimizer(
            first, NET, config_of(options), "cpu", ordered=ordered
        )
        random = torch.Generator().manual_seed(5)
        sizes = sum(optimizer.model.rows.sizes)
        start = torch.randn(sizes, generator=random) * 0.3
        teacher = torch.randn(16, generator=random)
        flat = optimizer.model.rows.place(start).view(-1)
        random.manual_seed(100 + first.rank)
        total = 0.0
        for step in range(250):
            x = torch.randn(64, 16, generator=random)
            y = torch.sin(x @ teacher) + 0.3 * torch.randn(64, generator=random)
            leaf = flat.clone().requires_grad_()
            loss = loss_of(leaf, optimizer, x, y)
            loss.backward()
            assert leaf.grad is not None
            report = optimizer.step(flat, leaf.grad)
            assert report.applied
            total += loss.item() if step >= 200 else 0.0
        return total / 50

    return sum(on_ranks(2, run)) / 2


@pytest.mark.parametrize("kind", ["OnebitAdam", "OnebitLamb"])
def test_plain_sums_end_with_the_same_loss(kind: str) -> None:
    ordered, plain = final_loss(kind, True), final_loss(kind, False)
    assert math.isclose(ordered, plain, rel_tol=5e-3), (ordered, plain)
    assert ordered < 0.9  # it has learned: the targets' variance is about 0.6


# ---- over a process group


def digest(optimizer: DeviceOptimizer, params: torch.Tensor) -> list[int]:
    bits = [params, *(v for v in optimizer.state_dict().values() if torch.is_tensor(v))]
    weights = torch.arange(1, 8193)
    return [
        int((b.view(torch.uint8).long() * weights.repeat(99)[: b.nbytes]).sum())
        for b in bits
    ]


def train(group: Any, ordered: bool) -> list[list[int]]:
    found = []
    for kind in KINDS:
        config = config_of(
            options_of(kind), gradient_clipping=10.0, comm__verify_every=3
        )
        optimizer = make_optimizer(group, SPECS, config, "cpu", ordered=ordered)
        params = optimizer.model.rows.place(parameters()).view(-1)
        for step in range(1, 31):
            grads = optimizer.model.rows.place(gradient(step, group.rank)).view(-1)
            optimizer.step(params, grads)
        optimizer.synchronize(params)
        found.append(digest(optimizer, params))
    return found


def train_over_gloo() -> list[list[list[int]]]:
    """A rank: in rank order, and by the group's own averages."""
    comm.init_distributed("gloo")
    own = comm.group_for_device(None, torch.device("cpu"))
    assert own is not None
    group = SimpleNamespace(rank=own.rank(), size=own.size(), process_group=own)
    found = [train(group, True), train(group, False)]
    comm.close_group(own)
    return found


def test_bits_over_gloo_are_those_of_threads() -> None:
    world = 2
    local = on_ranks(world, lambda first, _: train(first, True))
    got = ranks.succeed(ranks.call(world, __file__, "train_over_gloo"))
    assert [rank.value[0] for rank in got] == local
    parameters_of = [[found[0] for found in rank.value[1]] for rank in got]
    assert all(own == parameters_of[0] for own in parameters_of)


def lose_a_peer() -> str:
    """A rank: rank 1 leaves before the second step."""
    import os

    comm.init_distributed("gloo")
    own = comm.group_for_device(None, torch.device("cpu"))
    assert own is not None
    group = SimpleNamespace(rank=own.rank(), size=own.size(), process_group=own)
    optimizer = make_optimizer(group, SPECS, config_of(options_of("Adam")), "cpu")
    params = optimizer.model.rows.place(parameters()).view(-1)
    for _ in range(2):
        try:
            optimizer.step(params, torch.ones_like(params))
        except Exception as error:  # noqa: BLE001  what is raised is looked at
            return f"{type(error).__name__}: {error}"
        if group.rank == 1:
            os._exit(7)
    return "nothing was raised"


def test_a_lost_peer_is_a_failure_of_communication() -> None:
    first, second = ranks.call(2, __file__, "lose_a_peer")
    assert second.returncode == 7
    assert first.value.startswith("CommFailure: device exchange: "), ranks.describe(
        [first]
    )

# SPDX-License-Identifier: Apache-2.0
"""The device path on CPU tensors has the bits of the C++ kernels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from device_runs import (
    SIZE,
    Gradients,
    Pair,
    config_of,
    gradient,
    on_ranks,
    options_of,
)
from thinwire import _core

KINDS = ["Adam", "Lamb", "OnebitAdam", "OnebitLamb", "ZeroOneAdam"]
LOW_BIT = KINDS[2:]
GROUPS = {
    "Adam": _core.AdamGroup,
    "Lamb": _core.LambGroup,
    "OnebitAdam": _core.OnebitAdamGroup,
    "OnebitLamb": _core.OnebitLambGroup,
    "ZeroOneAdam": _core.MaskedGroup,
}
MASK = (torch.arange(2145 + 1 + 1024) % 3 != 0).float()  # of group 0


def groups_of(kind: str, *values: dict[str, Any]) -> list[Any]:
    groups = []
    for own in values:
        groups.append(GROUPS[kind]())
        for name, value in own.items():
            setattr(groups[-1], name, value)
    return groups


def require_same_run(
    world: int,
    config: _core.Config,
    steps: int,
    gradients: Gradients = gradient,
    **kinds: Any,
) -> list[Pair]:
    """Runs both and compares them after every step, and after a last synchronize()."""

    def run(first: _core.Communicator, second: _core.Communicator) -> Pair:
        pair = Pair.of((first, second), config, kinds.get("dtype", torch.float32))
        for step in range(1, steps + 1):
            pair.step(step, gradients, kinds.get("grads"), kinds.get("loss_scale", 1.0))
            pair.require_same(step)
        pair.synchronize()
        pair.require_same(steps)
        return pair

    return on_ranks(world, run)


@pytest.mark.parametrize("world", [1, 2, 3, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS)
def test_bits_of_200_steps(kind: str, world: int) -> None:
    config = config_of(options_of(kind), gradient_clipping=10.0)
    pairs = require_same_run(world, config, 200)
    if kind in LOW_BIT:
        reports = [native for native, _ in pairs[0].reports]
        assert reports[-1].heavy == 1
        # 0/1 Adam's later variance steps take in what comes early.
        early = 0 if kind == "ZeroOneAdam" else 20
        assert sum(report.revived for report in reports) == early + 348
        assert any(report.clip_factor < 1 for report in reports)


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_bits_with_masks_and_options_of_groups(kind: str, world: int) -> None:
    other = {"learning_rate": 3e-3, "beta1": 0.8, "beta2": 0.95}
    other |= {"epsilon": 1e-6, "weight_decay": 0.0}
    if "Lamb" in kind:
        other |= {"max_coeff": 2.0, "min_coeff": 0.5}
    masked = {"exp_avg_mask": MASK} if kind in LOW_BIT else {}
    options = options_of(kind, groups=groups_of(kind, masked, other))
    pairs = require_same_run(world, config_of(options, gradient_clipping=10.0), 50)
    if kind in LOW_BIT:
        assert pairs[0].reports[-1][1].masked == int((MASK == 0).sum())


@pytest.mark.parametrize("kind", LOW_BIT)
def test_bits_with_bf16_residuals(kind: str) -> None:
    options = options_of(kind, denom_floor=0.0)
    options.residual_dtype = _core.DType.bfloat16
    require_same_run(2, config_of(options), 50)


@pytest.mark.parametrize("kind", KINDS)
def test_bits_without_bias_correction(kind: str) -> None:
    options = options_of(kind, bias_correction=False, epsilon_inside_sqrt=True)
    config = config_of(options, gradient_clipping=5.0)
    require_same_run(2, config, 40)


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("kind", LOW_BIT)
def test_bits_of_lagged_clipping(kind: str, world: int) -> None:
    """Spikes come in steps 30 and 133, overflows in between."""
    config = config_of(options_of(kind), gradient_clipping=10.0)
    config.lagged_clipping = True
    pairs = require_same_run(world, config, 140, with_overflows)
    reports = [device for _, device in pairs[0].reports]
    # It is not its own norm that a step is clipped by.
    clipped = [r for r in reports if r.clip_factor < 1 and r.phase == "compressed"]
    assert any(abs(r.clip_factor * r.grad_norm - 10.0) > 0.1 for r in clipped)


def test_bits_of_adam_with_l2_decay() -> None:
    require_same_run(2, config_of(options_of("Adam", decoupled_decay=False)), 30)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_bits_of_groups_that_stay_exact(world: int) -> None:
    groups = groups_of(
        "OnebitAdam", {"exp_avg_mask": MASK}, {"non_freeze": True, "beta1": 0.8}
    )
    config = config_of(options_of("OnebitAdam", groups=groups), gradient_clipping=10.0)
    require_same_run(world, config, 40)


@pytest.mark.parametrize("kind", ["OnebitAdam", "OnebitLamb"])
def test_bits_of_the_automatic_freeze(kind: str) -> None:
    options = options_of(kind, freeze_step=_core.AUTO_FREEZE, freeze_ratio=0.3)
    options.min_freeze_step, options.total_steps = 10, 300
    reports = require_same_run(2, config_of(options), 80)[0].reports
    frozen = [device.phase for _, device in reports].index("compressed")
    assert 50 <= frozen < 80


@pytest.mark.parametrize("world", [1, 2])
def test_bits_of_0_1_adam_where_a_group_rests(world: int) -> None:
    options = options_of("ZeroOneAdam")
    options.groups = groups_of("ZeroOneAdam", {}, {"learning_rate": 0.0})
    require_same_run(world, config_of(options), 60)


def with_overflows(step: int, rank: int) -> torch.Tensor:
    g = gradient(step, rank)
    if step % 9 == 0 and rank == step // 9 % 2:
        g[7] = math.inf if step % 2 else math.nan
    return g


@pytest.mark.parametrize("kind", KINDS)
def test_bits_where_gradients_are_not_finite(kind: str) -> None:
    config = config_of(options_of(kind), gradient_clipping=10.0)
    pairs = require_same_run(2, config, 60, with_overflows)
    applied = [device.applied for _, device in pairs[0].reports]
    assert not all(applied)
    assert pairs[0].device.skipped_steps == applied.count(False)
    assert pairs[0].device.steps == applied.count(True)


@pytest.mark.parametrize("kind", KINDS)
def test_bits_of_bf16_parameters(kind: str) -> None:
    config = config_of(options_of(kind), gradient_clipping=10.0)
    config.precision.dtype = _core.DType.bfloat16
    bf16 = torch.bfloat16
    require_same_run(
        2, config, 50, with_overflows, dtype=bf16, grads=bf16, loss_scale=2.0
    )


@pytest.mark.parametrize("kind", KINDS)
def test_bits_of_fp16_parameters_and_their_loss_scale(kind: str) -> None:
    config = config_of(options_of(kind), gradient_clipping=10.0)
    config.precision.dtype = _core.DType.float16
    scale = config.precision.loss_scale
    scale.initial_scale, scale.window, scale.hysteresis = 1.0, 5, 1
    scale.min_scale = 2.0**-10

    def run(first: _core.Communicator, second: _core.Communicator) -> set[float]:
        pair = Pair.of((first, second), config, torch.float16)
        seen = set()
        for step in range(1, 61):
            pair.step(step, with_overflows, torch.float16)
            pair.require_same(step)
            assert pair.device.loss_scale == pair.native.loss_scale
            seen.add(pair.device.loss_scale)
        return seen

    assert len(on_ranks(2, run)[0]) > 2


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_taken_whatever_gradients_are(kind: str) -> None:
    config = config_of(options_of(kind))
    config.precision.check_grad_overflow = False
    pairs = require_same_run(2, config, 8)
    assert all(device.applied for _, device in pairs[0].reports)


def test_no_step_where_the_sum_overflows() -> None:
    def large(step: int, rank: int) -> torch.Tensor:
        return torch.full((SIZE,), 3e38) if step == 3 else gradient(step, rank)

    pairs = require_same_run(2, config_of(options_of("OnebitAdam")), 5, large)
    assert [device.applied for _, device in pairs[1].reports] == [
        True,
        True,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_bits_where_rates_and_decay_change(kind: str) -> None:
    config = config_of(options_of(kind), gradient_clipping=10.0)

    def run(first: _core.Communicator, second: _core.Communicator) -> None:
        pair = Pair.of((first, second), config)
        for step in range(1, 41):
            for optimizer in (pair.native, pair.device):
                optimizer.set_learning_rate(0, 1e-2 * min(1.0, step / 20))
                optimizer.set_weight_decay(1, 1e-3 * step)
            pair.step(step)
            pair.require_same(step)

    on_ranks(2, run)

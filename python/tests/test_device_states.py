# SPDX-License-Identifier: Apache-2.0
"""States of the device path: they continue with the same bits, and move to and from the native
optimizers."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from device_runs import SPECS, Pair, config_of, on_ranks, options_of
from thinwire import _core
from thinwire.device import make_optimizer
from thinwire.errors import CorruptCheckpoint

KINDS = ["Adam", "Lamb", "OnebitAdam", "OnebitLamb", "ZeroOneAdam"]
STEPS = (6, 14, 41)  # exact; compressed; after late elements, within local steps


def config_for(kind: str, dtype: _core.DType) -> _core.Config:
    options = options_of(kind)
    config = config_of(options, gradient_clipping=10.0)
    config.comm.bucket_elements = 2048
    config.precision.dtype = dtype
    config.lagged_clipping = kind in ("OnebitLamb", "ZeroOneAdam")
    return config


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_continues_with_the_same_bits(kind: str, dtype: str) -> None:
    config = config_for(kind, getattr(_core.DType, dtype))

    def run(first: _core.Communicator, second: _core.Communicator) -> None:
        pair = Pair.of((first, second), config, getattr(torch, dtype))
        for step in range(1, 50):
            pair.step(step)
            pair.require_same(step)
            if step in STEPS:
                state = through_a_file(pair.device.state_dict())
                masters = pair.device.masters()
                pair.device = make_optimizer(second, SPECS, config, "cpu")
                pair.device.load_state_dict(state)
                if masters is not None:
                    assert torch.equal(pair.device.masters(), masters)
                is_behind = pair.device.steps_behind > 0
                assert is_behind == (kind == "ZeroOneAdam" and step == 41)

    on_ranks(2, run)


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_states_move_to_and_from_the_native_optimizers(kind: str, world: int) -> None:
    config = config_for(kind, _core.DType.float32)

    def run(first: _core.Communicator, second: _core.Communicator) -> None:
        pair = Pair.of((first, second), config)
        for step in range(1, 48):
            pair.step(step)
            pair.require_same(step)
            if step not in STEPS:
                continue
            native, device = pair.native.state_dict(), pair.device.native_state()
            pair.native = _core.Optimizer(
                first, _core.Layout(SPECS), config, pair.native_params
            )
            pair.native.adopt(device)
            pair.device = make_optimizer(second, SPECS, config, "cpu")
            pair.device.adopt(native)

    on_ranks(world, run)


OWNER = {"arrays", "rank", "world_size", "residual_layout"}
# What was planned, and how a kept variance is scaled: native states alone.
PLANNED = {"freeze_step", "var_freeze_step", "var_update_scaler", "local_step_scaler"}
PLANNED |= {"local_step_clipper", "variance_is_unbiased"}


def as_bytes(value: Any) -> Any:
    if isinstance(value, int | float | str):
        return value
    return torch.from_dlpack(value).contiguous().view(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_every_array_and_scalar_is_that_of_the_native_state(kind: str) -> None:
    dtype = "bfloat16" if kind == "ZeroOneAdam" else "float32"
    config = config_for(kind, getattr(_core.DType, dtype))

    def run(first: _core.Communicator, second: _core.Communicator) -> None:
        pair = Pair.of((first, second), config, getattr(torch, dtype))
        for step in range(1, 42):
            pair.step(step)
            native, device = pair.native.state_dict(), pair.device.native_state()
            assert set(native) - OWNER - PLANNED == set(device) - PLANNED
            for name, value in device.items():
                assert as_bytes(value) == as_bytes(native[name]), f"step {step}: {name}"

    on_ranks(2, run)


@pytest.mark.parametrize("before", [True, False])
def test_a_run_may_begin_or_end_lagged_clipping(before: bool) -> None:
    config = config_for("OnebitAdam", _core.DType.float32)
    config.lagged_clipping = before

    def run(first: _core.Communicator, second: _core.Communicator) -> None:
        pair = Pair.of((first, second), config)
        for step in range(1, 17):
            pair.step(step)
        states = pair.native.state_dict(), pair.device.state_dict()
        assert ("clip_reference" in states[1]) == before
        other = config_for("OnebitAdam", _core.DType.float32)
        other.lagged_clipping = not before
        pair.native = _core.Optimizer(
            first, _core.Layout(SPECS), other, pair.native_params
        )
        pair.device = make_optimizer(second, SPECS, other, "cpu")
        pair.native.adopt(states[0])
        pair.device.load_state_dict(states[1])
        for step in range(17, 35):
            pair.step(step)
            pair.require_same(step)

    on_ranks(2, run)


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    config = config_for("OnebitAdam", _core.DType.float32)

    def run(first: _core.Communicator, second: _core.Communicator) -> None:
        pair = Pair.of((first, second), config)
        for step in range(1, 20):
            pair.step(step)
        state = pair.device.state_dict()
        torn = [
            ({"exp_avg": state["exp_avg"][1:]}, "'exp_avg' must have"),
            (
                {"exp_avg": state["exp_avg"].double()},
                "'exp_avg' must be of torch.float32",
            ),
            ({"optimizer": "onebit_lamb"}, "optimizer is onebit_lamb"),
            ({"layout": "another"}, "another parameter layout"),
            ({"device_rank": 1 - first.rank}, "residuals of rank"),
            ({"server_error": state["server_error"][:3]}, "'server_error' must have"),
            ({"denominator_floors.ranges": torch.zeros(2).long()}, "other blocks"),
            ({"participation": torch.full_like(state["participation"], 3)}, "up to 2"),
            ({"learning_rates": torch.tensor([1.0, -1.0]).double()}, "learning rates"),
        ]
        for change, message in torn:
            with pytest.raises(CorruptCheckpoint, match=message):
                pair.device.load_state_dict({**state, **change})
        with pytest.raises(CorruptCheckpoint, match="native"):
            pair.device.load_state_dict(pair.native.state_dict())
        for missing in ("denominator", "server_error", "frozen_at", "exp_avg"):
            with pytest.raises(CorruptCheckpoint, match=missing):
                pair.device.load_state_dict(
                    {k: v for k, v in state.items() if k != missing}
                )
        pair.step(20)
        pair.require_same(20)

    on_ranks(2, run)

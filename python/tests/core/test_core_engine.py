# SPDX-License-Identifier: Apache-2.0
"""The native engine."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from core_cases import (
    Trained,
    all_options,
    assert_equal,
    config,
    tensors,
)
from thinwire import _core, errors
from thinwire.comm import run_local_ranks

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("zero_stage", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_ranks_stay_equal(dtype: torch.dtype, zero_stage: int) -> None:
    def train(comm: _core.Communicator) -> torch.Tensor:
        trained = Trained(comm, config(None, dtype, None, zero_stage))
        start = trained.params.clone()
        params = trained.train(3)
        assert not torch.equal(params, start)
        assert torch.allclose(
            torch.from_dlpack(trained.engine.masters()), params.float(), atol=0.01
        )
        w = torch.from_dlpack(trained.engine.full_parameter("w"))
        assert torch.equal(w.to(dtype), params[:231])
        trained.engine.close()
        return params

    first, second, third = run_local_ranks(3, train)
    assert torch.equal(first, second)
    assert torch.equal(first, third)


def test_zero_shows_whole_values() -> None:
    def train(comm: _core.Communicator) -> None:
        engine = (trained := Trained(comm, config(zero_stage=2))).engine
        trained.backward()
        gradient = torch.from_dlpack(engine.full_gradient("b"))
        engine.step()
        moment = torch.from_dlpack(engine.full_state("b", "exp_avg"))
        assert torch.allclose(moment, 0.1 * gradient)
        with pytest.raises(errors.InvalidArgument, match="no_such"):
            engine.full_parameter("no_such")

    run_local_ranks(2, train)


def test_windows_and_reports() -> None:
    def train(comm: _core.Communicator) -> None:
        chosen = config()
        chosen.gradient_accumulation_steps = 2
        engine = (trained := Trained(comm, chosen)).engine
        assert (engine.loss_factor, engine.loss_scale, engine.is_boundary) == (
            0.5,
            1,
            False,
        )
        trained.backward()
        assert not engine.step().at_boundary
        trained.backward()
        assert engine.is_boundary
        report = engine.step()
        assert isinstance(report, _core.StepReport)
        assert (report.at_boundary, report.steps, report.phase) == (True, 1, "exact")
        assert report.learning_rate == 1e-3
        assert (engine.steps, engine.skipped_steps, engine.phase) == (1, 0, "exact")
        assert engine.mean(float(comm.rank)) == 0.5
        engine.set_accumulation_boundary(True)
        assert engine.is_boundary
        engine.set_accumulation_boundary(None)
        engine.begin_backward()
        with pytest.raises(errors.FailedPrecondition):
            engine.begin_backward()
        engine.cancel_backward("the loss was not finite")
        engine.begin_evaluation()
        with pytest.raises(errors.FailedPrecondition):
            engine.begin_backward()
        engine.end_evaluation()

    run_local_ranks(2, train)


def test_learning_rates() -> None:
    engine = Trained(_core.local_group(1)[0], config()).engine
    engine.set_learning_rate(0.5)
    assert [engine.learning_rate(group) for group in (0, 1)] == [0.5, 0.5]
    engine.set_learning_rate(0.25, 1)
    assert [engine.learning_rate(group) for group in (0, 1)] == [0.5, 0.25]
    with pytest.raises(errors.InvalidArgument, match="group"):
        engine.set_learning_rate(0.25, 2)


def test_masters_are_read_again() -> None:
    trained = Trained(_core.local_group(1)[0], config(dtype=torch.bfloat16))
    trained.params.fill_(0.5)
    trained.engine.read_masters()
    assert set(memoryview(trained.engine.masters()).tolist()) == {0.5}


def test_a_state_goes_on_with_the_same_bits() -> None:
    def train(comm: _core.Communicator) -> None:
        chosen = config(all_options()["onebit_adam"])
        first, second = Trained(comm, chosen), Trained(comm, chosen, seed=9)
        first.train(4)
        second.params.copy_(first.params)
        second.engine.load_state_dict(tensors(first.engine.state_dict()))
        assert torch.equal(first.train(2), second.train(2))
        assert_equal(first.engine.state_dict(), second.engine.state_dict())

    run_local_ranks(2, train)


def make_cycle() -> tuple[weakref.ref[_core.Engine], weakref.ref[torch.Tensor]]:
    trained = Trained(_core.local_group(1)[0], config())
    trained.engine.set_others(lambda: trained and _core.Others())
    return weakref.ref(trained.engine), weakref.ref(trained.params)


def test_a_cycle_through_others_is_collected() -> None:
    engine, params = make_cycle()
    gc.collect()
    assert engine() is None
    assert params() is None


def test_a_closed_engine_refuses() -> None:
    engine = Trained(_core.local_group(1)[0], config()).engine
    engine.close()
    engine.close()
    for use in (
        engine.begin_backward,
        engine.step,
        lambda: engine.steps,
        engine.masters,
    ):
        with pytest.raises(errors.FailedPrecondition, match="this engine is closed"):
            use()

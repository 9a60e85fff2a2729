# SPDX-License-Identifier: Apache-2.0
"""Native optimizers and engines: states, reports, who keeps whom alive, closing, tensors
beside those that are trained."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import native
import pytest
import torch
from local_ranks import by_ranks
from native import Trained, config, layout, scratch
from thinwire import _core, errors
from thinwire.comm import run_local_ranks

pytestmark = pytest.mark.quick


@pytest.fixture
def alone() -> _core.Communicator:
    return _core.local_group(1)[0]


def test_other_things_are_no_state(alone: _core.Communicator) -> None:
    optimizer = native.Training(alone).optimizer
    for state, text in (
        (3, "state must be a mapping, got int"),
        (
            {"step": None},
            r"state\['step'\] must be an array, int, float or str, got None",
        ),
        ({"exp_avg": torch.zeros(2, 2)}, r"\['exp_avg'\] must be an array on the CPU"),
    ):
        with pytest.raises(TypeError, match=text):
            optimizer.load_state_dict(state)


@by_ranks(2)
def test_one_ranks_mistake_stops_all(comm: _core.Communicator) -> None:
    right = torch.zeros(1257)
    for params, initial, text in (
        (right[:3], None, "params must be float32 of 1257 elements, got float32 of 3"),
        (right.half(), None, "params must be float32 of 1257 elements, got float16"),
        (right, right[:5], "initial must be float32 of 1257 elements"),
    ):
        given = (params, initial) if comm.rank == 1 else (right, None)
        with pytest.raises(errors.InvalidArgument, match=text) as raised:
            _core.Optimizer(comm, layout(), config(), *given)
        assert comm.rank == 1 or str(raised.value).startswith("rank 1 gave up: ")


def test_an_optimizer_keeps_its_group_alive() -> None:
    def train(comm: _core.Communicator) -> torch.Tensor:
        training = native.Training(comm)
        comm.close()
        return training.steps(6).params

    first, second = run_local_ranks(2, train)
    assert torch.equal(first, second)


def test_zero_keeps_the_parameters_alive_and_nothing_the_optimizer(
    alone: _core.Communicator,
) -> None:
    for is_closed in (True, False):
        params = torch.ones(layout().size)
        optimizer = _core.Optimizer(alone, layout(), config(zero_stage=1), params)
        alive, itself = weakref.ref(params), weakref.ref(optimizer)
        del params
        gc.collect()
        assert alive() is not None
        if is_closed:
            optimizer.close()
        else:
            del optimizer
        gc.collect()
        assert alive() is None
        assert is_closed or itself() is None


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


def test_others_that_raise_stop_all_ranks(tmp_path: Path) -> None:
    def save(comm: _core.Communicator) -> str:
        trained = Trained(comm, config())

        def others() -> Any:
            if comm.rank == 1:
                raise KeyError("mine")
            return _core.Others()

        trained.engine.set_others(others)
        kind = KeyError if comm.rank == 1 else errors.FailedPrecondition
        with pytest.raises(kind) as raised:
            trained.engine.save(str(tmp_path), None, scratch())
        trained.engine.set_others(lambda: 3)
        with pytest.raises(
            errors.InvalidArgument, match="others must return an Others"
        ):
            trained.engine.save(str(tmp_path), None, scratch())
        trained.engine.set_others(None)
        trained.engine.save(str(tmp_path), None, scratch())
        return str(raised.value)

    assert run_local_ranks(2, save) == ["rank 1 gave up: KeyError: 'mine'", "'mine'"]


def test_wrong_others_are_refused() -> None:
    with pytest.raises(
        errors.InvalidArgument, match="'x' must have as many values as its shape, 6"
    ):
        _core.Others([("x", (2, 3), torch.zeros(5), "")])
    with pytest.raises(TypeError, match="tensors: 'x' must be a writable array"):
        _core.Others([("x", (2, 3), torch.zeros(2, 3), "")])
    with pytest.raises(TypeError, match="others must be callable or None"):
        Trained(_core.local_group(1)[0], config()).engine.set_others(3)

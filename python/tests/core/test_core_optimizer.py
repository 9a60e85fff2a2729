# SPDX-License-Identifier: Apache-2.0
"""Native optimizers and engines: states, reports, who keeps whom alive, closing."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from core_cases import Run, Trained, all_options, config, layout
from local_ranks import by_ranks
from thinwire import _core, errors
from thinwire.comm import run_local_ranks

pytestmark = pytest.mark.quick
OPTIONS = all_options()


@pytest.fixture
def alone() -> _core.Communicator:
    return _core.local_group(1)[0]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (3, "state must be a mapping, got int"),
        (
            {"step": None},
            r"state\['step'\] must be an array, int, float or str, got NoneType",
        ),
        (
            {"exp_avg": torch.zeros(2, 2)},
            r"state\['exp_avg'\] must be an array on the CPU",
        ),
    ],
)
def test_other_things_are_no_state(
    alone: _core.Communicator, state: object, text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        Run(alone, config()).optimizer.load_state_dict(state)


@by_ranks(2)
def test_reports_and_properties(comm: _core.Communicator) -> None:
    run = Run(comm, config(OPTIONS["onebit_adam"]))
    assert (run.optimizer.phase, run.optimizer.residual_ratio) == ("exact", 0)
    exact = run.step()
    run.step()
    compressed = run.step()
    assert (exact.phase, compressed.phase) == ("exact", "compressed")
    assert 0 < compressed.bytes_sent < exact.bytes_sent / 10
    assert compressed.collectives > 0
    assert compressed.seconds >= compressed.exchange_seconds > 0
    assert run.optimizer.residual_ratio > 0
    assert (run.optimizer.steps, run.optimizer.skipped_steps) == (3, 0)
    grads = torch.full((run.layout.size,), float("inf") if comm.rank else 0.0)
    skipped = run.optimizer.step(run.params, grads)
    assert (skipped.applied, skipped.nonfinite_rank) == (False, 1)
    assert run.optimizer.skipped_steps == 1


@pytest.mark.parametrize(
    ("params", "initial", "text"),
    [
        (
            torch.zeros(3),
            None,
            "params must be float32 of 1257 elements, got float32 of 3",
        ),
        (
            torch.zeros(1257).half(),
            None,
            "params must be float32 of 1257 elements, got float16",
        ),
        (torch.zeros(1257), torch.zeros(5), "initial must be float32 of 1257 elements"),
    ],
)
def test_one_ranks_mistake_stops_all(
    params: torch.Tensor, initial: torch.Tensor | None, text: str
) -> None:
    def make(comm: _core.Communicator) -> str:
        wrong = comm.rank == 1
        with pytest.raises(errors.InvalidArgument, match=text) as raised:
            _core.Optimizer(
                comm,
                layout(),
                config(),
                params if wrong else torch.zeros(1257),
                initial if wrong else None,
            )
        return str(raised.value)

    texts = run_local_ranks(2, make)
    assert texts[0].startswith("rank 1 gave up: ")


def test_an_optimizer_keeps_its_group_alive() -> None:
    def train(comm: _core.Communicator) -> torch.Tensor:
        run = Run(comm, config(OPTIONS["onebit_adam"]))
        comm.close()
        return run.train(4)

    first, second = run_local_ranks(2, train)
    assert torch.equal(first, second)


def test_nothing_keeps_an_optimizer_alive(alone: _core.Communicator) -> None:
    run = Run(alone, config(zero_stage=1))
    params = weakref.ref(run.params)
    optimizer = weakref.ref(run.optimizer)
    run.train(1)
    del run
    gc.collect()
    assert optimizer() is None
    assert params() is None


def test_zero_keeps_the_parameters_alive(alone: _core.Communicator) -> None:
    params = torch.ones(layout().size)
    optimizer = _core.Optimizer(alone, layout(), config(zero_stage=1), params)
    alive = weakref.ref(params)
    del params
    gc.collect()
    assert alive() is not None
    optimizer.close()
    gc.collect()
    assert alive() is None


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

# SPDX-License-Identifier: Apache-2.0
"""The native optimizers: bits, states, closing, threads."""

from __future__ import annotations

import gc
import os
import weakref

import pytest
import torch
from core_cases import Run, all_options, assert_equal, config, layout, tensors
from thinwire import _core, errors
from thinwire.comm import run_local_ranks

pytestmark = pytest.mark.quick
OPTIONS = all_options()
STEPS = 7


@pytest.fixture
def alone() -> _core.Communicator:
    return _core.local_group(1)[0]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_bucket_sizes_do_not_change_bits(name: str, dtype: torch.dtype) -> None:
    def train(comm: _core.Communicator, bucket_elements: int) -> torch.Tensor:
        run = Run(comm, config(OPTIONS[name], dtype, bucket_elements))
        run.train(STEPS)
        run.optimizer.synchronize(run.params)
        return run.params

    first, second = run_local_ranks(2, lambda comm: train(comm, 1 << 20))
    assert torch.equal(first, second)
    for bucket_elements in (1, 100, 1024):
        again = run_local_ranks(2, lambda comm, b=bucket_elements: train(comm, b))
        assert torch.equal(again[0], first)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("before", [1, 5])
def test_a_loaded_state_goes_on_with_the_same_bits(
    name: str, dtype: torch.dtype, before: int
) -> None:
    def train(comm: _core.Communicator) -> None:
        chosen = config(OPTIONS[name], dtype)
        run = Run(comm, chosen)
        run.train(before)
        saved, params = run.optimizer.state_dict(), run.params.clone()
        other = Run(comm, chosen)
        other.params.copy_(params)
        other.optimizer.load_state_dict(tensors(saved))
        assert_equal(other.optimizer.state_dict(), saved)
        assert other.optimizer.steps == before
        for _ in range(3):
            grads = torch.randn(run.layout.size).to(dtype)
            run.optimizer.step(run.params, grads.clone())
            other.optimizer.step(other.params, grads)
        assert torch.equal(run.params, other.params)
        assert_equal(run.optimizer.state_dict(), other.optimizer.state_dict())

    run_local_ranks(2, train)


def test_a_state_of_another_rank_is_refused() -> None:
    def swap(comm: _core.Communicator) -> str:
        run = Run(comm, config(OPTIONS["onebit_adam"]))
        run.train(4)
        state = run.optimizer.state_dict()
        state["rank"] = 1 - comm.rank
        with pytest.raises(errors.CorruptCheckpoint, match="rank") as raised:
            run.optimizer.load_state_dict(state)
        assert run.step().applied
        return str(raised.value)

    assert run_local_ranks(2, swap)[0] != ""


def test_adopt_takes_the_state_of_another_optimizer(alone: _core.Communicator) -> None:
    exact = Run(alone, config(OPTIONS["adam"]))
    exact.train(2)
    low_bit = Run(alone, config(_core.OnebitAdamOptions()))
    low_bit.optimizer.adopt(exact.optimizer.state_dict())
    assert low_bit.optimizer.steps == 2
    assert torch.equal(
        tensors(low_bit.optimizer.state_dict())["exp_avg"],
        tensors(exact.optimizer.state_dict())["exp_avg"],
    )


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


def test_describe_state_names_every_array() -> None:
    def describe(comm: _core.Communicator) -> None:
        run = Run(comm, config(OPTIONS["onebit_adam"]))
        run.train(3)
        described = {name: rest for name, *rest in run.optimizer.describe_state()}
        assert described["exp_avg"] == ["element", "same"]
        assert described["server_error"] == ["element", "sharded"]
        assert set(described) <= set(run.optimizer.state_dict())

    run_local_ranks(2, describe)


def test_reports_and_properties() -> None:
    def train(comm: _core.Communicator) -> None:
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

    run_local_ranks(2, train)


def test_equal_gradients_are_reported() -> None:
    def step(comm: _core.Communicator) -> tuple[bool, bool]:
        run = Run(comm, config(OPTIONS["onebit_adam"]))
        same = run.optimizer.step(run.params, torch.ones(run.layout.size))
        return same.gradients_equal, run.step().gradients_equal

    assert run_local_ranks(2, step) == [(True, False)] * 2


def test_rates_and_decay_per_group(alone: _core.Communicator) -> None:
    run = Run(alone, config())
    before = run.params.clone()
    zeros = torch.zeros_like(run.params)
    run.optimizer.set_learning_rate(1, 0.5)
    run.optimizer.set_weight_decay(1, 0.5)
    run.optimizer.step(run.params, zeros)
    assert [run.optimizer.learning_rate(group) for group in (0, 1)] == [1e-3, 0.5]
    b = slice(231, 231 + 1025)
    assert torch.allclose(run.params[b], 0.75 * before[b])
    assert torch.equal(run.params[:231], before[:231])
    with pytest.raises(errors.InvalidArgument, match="group"):
        run.optimizer.set_learning_rate(2, 0.5)
    with pytest.raises(errors.InvalidArgument, match="weight_decay"):
        run.optimizer.set_weight_decay(0, -1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masters_are_read_and_written(
    alone: _core.Communicator, dtype: torch.dtype
) -> None:
    run = Run(alone, config(dtype=dtype))
    values = torch.linspace(-2, 2, run.layout.size)
    run.optimizer.read_masters(values)
    assert torch.equal(torch.from_dlpack(run.optimizer.masters()), values)
    run.optimizer.write_params(run.params)
    assert torch.equal(run.params, values.to(dtype))
    assert run.optimizer.loss_scale == (65536 if dtype == torch.float16 else 1)


def test_fp32_parameters_are_their_own_masters(alone: _core.Communicator) -> None:
    run = Run(alone, config())
    before = run.params.clone()
    assert run.optimizer.masters() is None
    run.optimizer.write_params(run.params)
    assert torch.equal(run.params, before)


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


def test_wrong_sizes_change_nothing(alone: _core.Communicator) -> None:
    run = Run(alone, config())
    before = run.params.clone()
    with pytest.raises(errors.InvalidArgument, match="grads"):
        run.optimizer.step(run.params, torch.zeros(3))
    assert torch.equal(run.params, before)
    assert run.optimizer.steps == 0


def test_a_closed_optimizer_refuses(alone: _core.Communicator) -> None:
    run = Run(alone, config())
    run.optimizer.close()
    run.optimizer.close()
    for use in (
        run.step,
        run.optimizer.state_dict,
        lambda: run.optimizer.steps,
        lambda: run.optimizer.set_learning_rate(0, 1.0),
    ):
        with pytest.raises(errors.FailedPrecondition, match="this optimizer is closed"):
            use()


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
    address = params.data_ptr()
    again = torch.from_dlpack(optimizer.exchanged_params(params))
    alive = weakref.ref(params)
    del params
    gc.collect()
    assert alive() is not None
    assert alive().data_ptr() == address
    assert torch.equal(again, torch.ones_like(again))


def test_children_of_fork_are_refused(alone: _core.Communicator) -> None:
    run = Run(alone, config())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run.step()
        except errors.FailedPrecondition as error:
            code = 0 if "has forked" in str(error) else 2
            run.optimizer.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run.step().applied

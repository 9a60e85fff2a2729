# SPDX-License-Identifier: Apache-2.0
"""What the device path does not have, or is given wrongly, is refused by name, on all ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from device_runs import SPECS, config_of, on_ranks, options_of, parameters
from thinwire import _core
from thinwire.device import make_optimizer
from thinwire.errors import (
    CommFailure,
    FailedPrecondition,
    InvalidArgument,
    Unavailable,
)

pytestmark = pytest.mark.quick


def adam_config(change: Callable[[_core.Config], None] | None = None) -> _core.Config:
    config = config_of(options_of("OnebitAdam"))
    if change is not None:
        change(config)
    return config


def alone(config: _core.Config):
    return make_optimizer(_core.local_group(1)[0], SPECS, config, "cpu")


def deepspeed(config: _core.Config) -> None:
    config.semantics = _core.Semantics.deepspeed


def sharded(config: _core.Config) -> None:
    config.optimizer = options_of("Adam")
    config.zero.stage = 1


def low_masters(config: _core.Config) -> None:
    config.optimizer = options_of("Adam")
    config.precision.dtype = _core.DType.bfloat16
    config.precision.master_dtype = _core.DType.bfloat16


def lean(config: _core.Config) -> None:
    config.optimizer = _core.LeanOnebitAdamOptions()


def by_host(config: _core.Config) -> None:
    config.comm.hierarchy = _core.Hierarchy.by_host


def on_hosts(config: _core.Config) -> None:
    config.comm.ranks_per_host = 2


def during_backward(config: _core.Config) -> None:
    config.lagged_clipping = True
    config.comm.compressed_during_backward = True


def few_bits(config: _core.Config) -> None:
    sharded(config)
    config.zero.wire.bits_up = 4


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (deepspeed, "semantics deepspeed"),
        (sharded, "zero stage 1"),
        (few_bits, "zero stage 1"),
        (low_masters, "master_dtype"),
        (lean, "lean 1-bit Adam"),
        (by_host, "hierarchy by_host"),
        (on_hosts, "hierarchy auto with ranks_per_host"),
        (during_backward, "compressed_during_backward"),
    ],
)
def test_what_it_does_not_have(
    change: Callable[[_core.Config], None], named: str
) -> None:
    def run(first: _core.Communicator, _: _core.Communicator) -> None:
        with pytest.raises(Unavailable, match=f"device: .*{named}.* CPU only"):
            make_optimizer(first, SPECS, adam_config(change), "cpu")

    on_ranks(4, run)


def test_hierarchy_flat_may_know_of_hosts() -> None:
    config = adam_config(on_hosts)
    config.comm.hierarchy = _core.Hierarchy.flat
    assert alone(config).phase == "exact"


def test_options_out_of_range_are_the_librarys_errors() -> None:
    config = adam_config()
    config.optimizer.beta1 = 1.5
    with pytest.raises(InvalidArgument, match="beta1"):
        alone(config)


@pytest.mark.parametrize(
    "name", ["learning_rate", "beta1", "beta2", "epsilon", "weight_decay"]
)
def test_numbers_of_a_group_out_of_range(name: str) -> None:
    config, groups = adam_config(), [_core.OnebitAdamGroup(), _core.OnebitAdamGroup()]
    setattr(groups[1], name, -1.0)
    config.optimizer.groups = groups
    with pytest.raises(InvalidArgument, match=f"{name} must be .*got -1"):
        alone(config)


def test_a_mask_of_another_length() -> None:
    config, groups = adam_config(), [_core.OnebitAdamGroup(), _core.OnebitAdamGroup()]
    groups[1].exp_avg_mask = [1.0, 0.0]
    config.optimizer.groups = groups
    with pytest.raises(
        InvalidArgument, match=r"groups\[1\].exp_avg_mask must be of 1032"
    ):
        alone(config)
    config.optimizer.groups = groups[:1]
    with pytest.raises(InvalidArgument, match="one per group"):
        alone(config)


def test_another_device_needs_a_process_group() -> None:
    with pytest.raises(Unavailable, match="process group of that device's backend"):
        make_optimizer(_core.local_group(2)[0], SPECS, adam_config(), "meta")


def test_arrays_that_do_not_fit() -> None:
    optimizer = alone(adam_config())
    params = optimizer.model.rows.place(parameters()).view(-1)
    grads, before = torch.ones_like(params), params.clone()
    wrong = [
        ((params[1:], grads), "params must be"),
        ((params.double(), grads), "params must be .* float32"),
        ((params, grads[:5]), "grads must be"),
        ((params, grads.int()), "grads must be"),
        ((params, grads, 0.0), "loss_scale"),
        ((params, grads, float("inf")), "loss_scale"),
    ]
    for arguments, message in wrong:
        with pytest.raises(InvalidArgument, match=message):
            optimizer.step(*arguments)
    for method in (optimizer.set_learning_rate, optimizer.set_weight_decay):
        with pytest.raises(InvalidArgument, match="finite and >= 0"):
            method(0, -1.0)
        with pytest.raises(InvalidArgument, match="group must be below 2"):
            method(2, 1.0)
    with pytest.raises(InvalidArgument, match="params must be"):
        optimizer.read_masters(params[1:])
    assert torch.equal(params, before)
    assert optimizer.steps == 0
    optimizer.close()
    optimizer.close()
    with pytest.raises(FailedPrecondition, match="closed"):
        optimizer.step(params, grads)


def test_options_that_differ_between_ranks() -> None:
    def run(first: _core.Communicator, _: _core.Communicator) -> str:
        config = adam_config()
        config.optimizer.beta2 = 0.99 if first.rank < 2 else 0.999
        with pytest.raises(InvalidArgument) as caught:
            make_optimizer(first, SPECS, config, "cpu")
        return str(caught.value)

    texts = on_ranks(3, run)
    assert len(set(texts)) == 1
    assert "parameter layout and options must be the same" in texts[0]
    assert "on rank 2" in texts[0]


def test_parameters_that_differ_are_found() -> None:
    def run(first: _core.Communicator, _: _core.Communicator) -> str:
        config = adam_config()
        config.comm.verify_every = 2
        optimizer = make_optimizer(first, SPECS, config, "cpu")
        params = optimizer.model.rows.place(parameters()).view(-1)
        optimizer.step(params, torch.ones_like(params))
        params[optimizer.offsets[4] + 7] += first.rank * 1e-6
        with pytest.raises(CommFailure) as caught:
            optimizer.step(params, torch.ones_like(params))
        return str(caught.value)

    for text in on_ranks(2, run):
        assert text.startswith("verification failed")
        assert "parameter long" in text


def test_weight_decay_and_learning_rates_change() -> None:
    optimizer = alone(config_of(options_of("Adam", weight_decay=0.0)))
    params = optimizer.model.rows.place(parameters()).view(-1)
    before = params.clone()
    optimizer.set_learning_rate(0, 0.0)
    optimizer.set_learning_rate(1, 0.5)
    assert optimizer.learning_rate(1) == 0.5
    optimizer.set_weight_decay(1, 0.1)
    optimizer.step(params, torch.zeros_like(params))
    rows = optimizer.model.rows
    own = slice(rows.offsets[4], rows.offsets[4] + 1025)
    assert torch.equal(params[: rows.offsets[2]], before[: rows.offsets[2]])
    torch.testing.assert_close(params[own], before[own] * 0.95)

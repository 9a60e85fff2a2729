# SPDX-License-Identifier: Apache-2.0
"""Parameters that somebody else writes into while an Engine trains them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import thinwire
import torch
from engines import (
    BF16,
    RUNS,
    ZERO_ONE,
    Net,
    config_of,
    flat,
    loss_of,
    make,
    same_bits,
    train,
    trained,
)
from local_ranks import by_ranks

pytestmark = pytest.mark.quick

# Between local steps writing is refused, and LAMB's steps are long.
FOLLOWED = RUNS.keys() - {"zero_one_adam", "onebit_lamb_bf16"}


def load(module: torch.nn.Module) -> None:
    state = copy.deepcopy(module.state_dict())
    state["first.weight"].fill_(3.0)
    module.load_state_dict(state)


@torch.no_grad()
def write(module: Any) -> None:
    module.first.weight.fill_(3.0)


def write_data(module: Any) -> None:
    module.first.weight.data.fill_(3.0)


def replace_data(module: Any) -> None:
    module.first.weight.data = torch.full_like(module.first.weight, 3.0)


@pytest.mark.parametrize("edit", [load, write, write_data, replace_data])
@pytest.mark.parametrize("name", sorted(FOLLOWED))
@by_ranks(2)
def test_what_is_written_between_steps_counts(comm: Any, name: str, edit: Any) -> None:
    changes = RUNS[name]
    engine = trained(comm, 2, **changes)
    edit(engine.module)
    train(engine, range(2, 3))
    assert engine.report.applied
    weight = engine.module.first.weight.detach().float()
    assert (weight - 3.0).abs().max() < 0.1  # a step from there


@pytest.mark.parametrize("name", ["zero_2_bf16", "zero_1_fp16"])
@by_ranks(2)
def test_values_that_are_put_back_are_no_edit(comm: Any, name: str) -> None:
    changes = RUNS[name]
    want, engine = (
        make(comm, config_of(**changes)),
        make(comm, config_of(**changes)),
    )
    for step in range(4):
        train(want, range(step, step + 1))
        train(engine, range(step, step + 1))
        kept = copy.deepcopy(engine.module.state_dict())
        write(engine.module)
        engine.module.load_state_dict(kept)
    assert same_bits(flat(engine.module), flat(want.module))


@by_ranks(2)
def test_what_is_written_is_saved(comm: Any, tmp_path: Any) -> None:
    engine, other = make(comm, config_of(**BF16)), make(comm, config_of(**BF16))
    train(engine, range(2))
    write(engine.module)
    engine.save_checkpoint(tmp_path)
    other.load_checkpoint(tmp_path)
    third = make(comm, config_of(**BF16))
    third.optimizer.load_state_dict(engine.optimizer.state_dict())
    for loaded in (other, third):
        assert bool((loaded.module.first.weight == 3.0).all())


@by_ranks(1)
def test_inside_a_window_writing_is_refused(comm: Any) -> None:
    for once_more in (True, False):
        engine = make(comm, config_of(**BF16, gradient_accumulation_steps=2))
        engine.backward(loss_of(engine, comm.rank, 0))
        engine.step()
        if not once_more:
            engine.backward(loss_of(engine, comm.rank, 1))
        with torch.no_grad():
            engine.module.first.weight[-1, -1] += 1
        with pytest.raises(
            thinwire.FailedPrecondition, match="inside a window of accumulation"
        ):
            if once_more:
                engine.backward(loss_of(engine, comm.rank, 1))
            engine.step()


@by_ranks(2)
def test_between_local_steps_writing_is_refused(comm: Any) -> None:
    engine = make(comm, config_of(**ZERO_ONE))
    step = 0
    while engine.report is None or engine.report.phase != "local":
        train(engine, range(step, step + 1))
        step += 1
    kept = copy.deepcopy(engine.module.state_dict())
    write(engine.module)
    with pytest.raises(thinwire.FailedPrecondition, match="between local steps"):
        engine.backward(loss_of(engine, comm.rank, step * 10))
    engine.module.load_state_dict(kept)
    with engine.evaluation():
        write(engine.module)
    train(engine, range(step, step + 8))
    weight = engine.module.first.weight.detach()
    assert (weight - 3.0).abs().max() < 0.2
    engine.load_module_state_dict(Net(seed=5).state_dict())
    with engine.evaluation():
        comm.require_same("parameters", str(flat(engine.module).sum().item()))

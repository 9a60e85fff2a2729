# SPDX-License-Identifier: Apache-2.0
"""Buffers and evaluations of an Engine, and its end."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import thinwire
import torch
from engines import (
    FP16,
    Net,
    config_of,
    flat,
    loss_of,
    make,
    same_bits,
    train,
    zero,
)
from local_ranks import by_ranks
from thinwire.comm import run_local_ranks

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("how", ["broadcast", "average", "as_they_are"])
def test_buffers(how: str) -> None:
    def run(comm: Any) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        model = Net()
        with torch.no_grad():
            model.norm.running_mean.fill_(comm.rank)
            model.norm.num_batches_tracked.fill_(comm.rank + 5)
        engine = make(comm, config_of(thinwire={"buffers": how}, **FP16), model=model)
        start = model.norm.running_mean.clone()
        assert start.dtype == torch.float16
        train(engine, range(1))
        own = model.norm.running_mean.clone()
        with engine.evaluation():
            assert not engine(torch.zeros(4, 7).half()).requires_grad
            inside = model.norm.running_mean.clone()
            refused = pytest.raises(thinwire.FailedPrecondition, match="evaluation")
            with refused, torch.enable_grad():
                engine.backward(loss_of(engine, comm.rank, 1))
        train(engine, range(1, 2))
        return (
            [start, own, inside],
            model.norm.num_batches_tracked,
            model.norm.running_mean,
        )

    first, second = run_local_ranks(2, run)
    start = {"broadcast": (0.0, 0.0), "average": (0.5, 0.5), "as_they_are": (0.0, 1.0)}[
        how
    ]
    assert (first[0][0][0].item(), second[0][0][0].item()) == start
    assert not torch.equal(first[0][1], second[0][1])
    assert torch.equal(first[0][2], second[0][2]) == (how != "as_they_are")


@by_ranks(1)
def test_an_engine_goes_when_nobody_has_it(comm: Any) -> None:
    model = Net()
    engine = make(comm, config_of(**zero(2)), model=model)
    train(engine, range(1))
    gone = weakref.ref(engine)
    values = flat(model)
    del engine
    gc.collect()
    assert gone() is None
    assert same_bits(flat(model), values)
    loss_of(model, 0, 0).backward()  # hooks are harmless
    again = make(comm, config_of(), model=model)
    train(again, range(1))
    again.destroy()
    again.destroy()
    for call in (
        lambda: again.backward(loss_of(model, 0, 0)),
        again.step,
        lambda: again.mean(1),
    ):
        with pytest.raises(thinwire.FailedPrecondition, match="destroyed"):
            call()


@by_ranks(1)
def test_an_engine_of_another_process_refuses(comm: Any) -> None:
    engine = make(comm, config_of())
    engine._process -= 1  # as after os.fork()
    with pytest.raises(thinwire.FailedPrecondition, match="that forked this one"):
        engine.step()
    engine.destroy()
    engine._process += 1
    train(engine, range(1))


@by_ranks(1)
def test_an_engine_is_neither_copied_nor_pickled(comm: Any) -> None:
    engine = make(comm, config_of())
    for action in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="save_checkpoint"):
            action(engine)

# SPDX-License-Identifier: Apache-2.0
"""If one rank of an engine refuses something, the others learn of it; nobody hangs."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import thinwire
import torch
from engines import FP16, flat, loss_of, train, trained, zero
from local_ranks import by_ranks
from thinwire import CommFailure, InvalidArgument
from thinwire.comm import run_local_ranks

pytestmark = pytest.mark.quick
SECONDS = 20.0
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "zero 1": zero(1),
    "zero 2": zero(2),
    "accumulation": {"gradient_accumulation_steps": 2},
}


@pytest.mark.parametrize("key,value", [("lr", math.nan), ("weight_decay", 0.5)])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_setting_that_one_rank_refuses_ends_the_backward_of_all(
    config: dict[str, Any], key: str, value: float
) -> None:
    told = threading.Event()

    def body(comm: Any) -> None:
        engine = trained(comm, 2, **config)
        if comm.rank == 1:
            engine.optimizer.param_groups[0][key] = value
            with pytest.raises(thinwire.Error, match=key):
                train(engine, range(2, 3))
            assert told.wait(SECONDS)
        else:
            with pytest.raises(CommFailure, match=r"rank 1 gave up: backward\(\): .*"):
                train(engine, range(2, 5))
            told.set()

    run_local_ranks(2, body)


def test_a_gradient_that_one_rank_lost_ends_the_step_of_all() -> None:
    told = threading.Event()

    def body(comm: Any) -> None:
        engine = trained(comm, 2)
        engine.backward(loss_of(engine, comm.rank, 3))
        if comm.rank == 1:
            engine.module.first.weight.grad = None
            with pytest.raises(
                thinwire.FailedPrecondition, match=r"first.weight.*gone"
            ):
                engine.step()
            assert told.wait(SECONDS)
        else:
            with pytest.raises(CommFailure, match=r"rank 1 gave up: .*first.weight"):
                engine.step()
                train(engine, range(4, 6))
            told.set()

    run_local_ranks(2, body)


@by_ranks(2)
def test_a_loss_scale_that_one_rank_refuses_is_refused_on_all(comm: Any) -> None:
    engine = trained(comm, 2, **FP16)
    for wrong in ("x", None, True, [512.0]):
        bad: Any = wrong if comm.rank == 1 else 512.0
        kind = TypeError if comm.rank == 1 else InvalidArgument
        with pytest.raises(kind, match="loss_scale.*"):
            engine.optimizer.loss_scale = bad
        with pytest.raises(TypeError, match="must be a number"):
            engine.optimizer.loss_scale = wrong  # type: ignore[assignment]
    engine.optimizer.loss_scale = 64.0
    train(engine, range(2, 3))
    assert engine.report is not None and engine.report.loss_scale == 64


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: {},
        lambda state: None,
        lambda state: {**state, "param_groups": []},
        lambda state: {**state, "thinwire": {**state["thinwire"], "engine_steps": "x"}},
    ],
    ids=["empty", "none", "no groups", "bad count"],
)
@pytest.mark.parametrize("stage", [1, 2])
@by_ranks(2)
def test_a_state_that_one_rank_refuses_is_refused_on_all(
    comm: Any, stage: int, spoil: Any
) -> None:
    engine = trained(comm, 2, **zero(stage))
    state = {k: v for k, v in engine.optimizer.state_dict().items()}
    before = flat(engine.module)
    with pytest.raises(thinwire.Error) as caught:
        engine.optimizer.load_state_dict(spoil(state) if comm.rank == 1 else state)
    assert comm.rank == 1 or "rank 1 " in str(caught.value)
    assert torch.equal(flat(engine.module), before)
    engine.optimizer.load_state_dict(state)
    train(engine, range(2, 4))


@by_ranks(2)
def test_a_load_whose_argument_one_rank_refuses_fails_on_all(
    comm: Any, tmp_path: Any
) -> None:
    engine = trained(comm, 2)
    engine.save_checkpoint(tmp_path, "a")
    for bad in (
        {"tag": 5},
        {"load_dir": 5},
        {"custom_load_fn": print},
        {"load_module_strict": False},
    ):
        mine: Any = bad if comm.rank == 1 else {}
        with pytest.raises((thinwire.Error, TypeError)) as caught:
            engine.load_checkpoint(**{"load_dir": tmp_path, "tag": "a"} | mine)
        assert comm.rank == 1 or "rank 1" in str(caught.value)
    with pytest.raises(thinwire.Error):
        thinwire.resume(
            tmp_path / "a", engine, module=engine.module if comm.rank else None
        )
    with pytest.raises(thinwire.Error):
        engine.save_checkpoint(tmp_path, 5 if comm.rank else "b")  # type: ignore[arg-type]
    engine.load_checkpoint(tmp_path, "a")
    train(engine, range(2, 3))

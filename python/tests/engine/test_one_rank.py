# SPDX-License-Identifier: Apache-2.0
"""If one rank alone refuses something, the others learn of it; nobody hangs."""

from __future__ import annotations

import math
import threading
from typing import Any

import optim_cases as cases
import pytest
import thinwire
import torch
from engines import flat, loss_of, train, trained, zero
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


def others_hear(make: Any, spoil: Any, go_on: Any, text: str, where: str) -> None:
    """Rank 1 spoils what it has made, and refuses to go on. Rank 0 then hears of it."""
    told = threading.Event()

    def body(comm: Any) -> None:
        made = make(comm)
        comm.require_same("steps", "5")  # no rank is still inside of one
        if comm.rank == 1:
            spoil(made)
            with pytest.raises((thinwire.Error, TypeError), match=text):
                go_on(made, range(5, 6))
            assert told.wait(SECONDS)
        else:
            heard = rf"(?s)rank 1 gave up: {where}.*{text}"
            with pytest.raises(CommFailure, match=heard):
                go_on(made, range(5, 8))
            told.set()

    run_local_ranks(2, body)


@pytest.mark.parametrize("key,value", [("lr", math.nan), ("weight_decay", -1.0)])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_setting_that_one_rank_refuses_ends_the_backward_of_all(
    config: dict[str, Any], key: str, value: float
) -> None:
    def make(comm: Any) -> Any:
        return trained(comm, 2, **config)

    def spoil(engine: Any) -> None:
        engine.optimizer.param_groups[0][key] = value

    others_hear(make, spoil, train, key, r"backward\(\)")


def test_a_gradient_that_one_rank_lost_ends_the_step_of_all() -> None:
    def make(comm: Any) -> Any:
        engine = trained(comm, 2)
        engine.backward(loss_of(engine, comm.rank, 3))
        return engine

    def spoil(engine: Any) -> None:
        engine.module.first.weight.grad = None

    def go_on(engine: Any, steps: range) -> None:
        engine.step()
        train(engine, steps)

    others_hear(make, spoil, go_on, "first.weight", "")


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


def set_in_group(key: str, value: Any) -> Any:
    def spoil(optimizer: Any) -> None:
        optimizer.param_groups[0][key] = value

    return spoil


def remove_a_group(optimizer: Any) -> None:
    optimizer.param_groups.pop()


def scale_by_nan(optimizer: Any) -> None:
    optimizer.grad_scale = math.nan


BAD: dict[str, tuple[Any, str]] = {
    "lr": (set_in_group("lr", math.nan), "'lr'.* must be finite and >= 0, got nan"),
    "lr of text": (set_in_group("lr", "x"), "must be a number, got 'x'"),
    "weight_decay": (set_in_group("weight_decay", -1.0), "must be finite and >= 0"),
    "betas": (set_in_group("betas", (0.1, 0.1)), "betas.* cannot change"),
    "freeze_step": (set_in_group("freeze_step", 5), "freeze_step.* cannot change"),
    "no group": (remove_a_group, "there are 0 now"),
    "grad_scale": (scale_by_nan, "grad_scale must be finite and > 0, got nan"),
}


@pytest.mark.parametrize("spoil,text", BAD.values(), ids=BAD)
@pytest.mark.parametrize("kind", cases.KINDS)
def test_a_setting_that_one_rank_refuses_ends_the_step_of_all(
    kind: str, spoil: Any, text: str
) -> None:
    def make(comm: Any) -> Any:
        net, optimizer = cases.made(kind, comm)
        cases.train(net, optimizer, range(5), comm.rank)
        return net, optimizer, comm.rank

    def go_on(made: Any, steps: range) -> None:
        net, optimizer, rank = made
        cases.train(net, optimizer, steps, rank)

    others_hear(make, lambda made: spoil(made[1]), go_on, text, r"step\(\)")


@pytest.mark.parametrize("what", ["step", "module"])
@by_ranks(2)
def test_a_save_whose_argument_one_rank_refuses_fails_on_all(
    comm: Any, what: str, tmp_path: Any
) -> None:
    net, optimizer = cases.made("AdamW", comm, named=True)
    cases.train(net, optimizer, range(2), comm.rank)
    bad: Any = {what: "x"} if comm.rank == 1 else {}
    with pytest.raises((InvalidArgument, AttributeError)) as caught:
        thinwire.save(tmp_path, optimizer, **bad)
    assert comm.rank == 1 or "rank 1 refused its arguments" in str(caught.value)
    thinwire.save(tmp_path, optimizer)
    if what == "module":
        with pytest.raises((InvalidArgument, AttributeError)):
            thinwire.resume(tmp_path, optimizer, **bad)
    assert thinwire.resume(tmp_path, optimizer) is not None
    cases.train(net, optimizer, [2], comm.rank)

# SPDX-License-Identifier: Apache-2.0
"""save_checkpoint() and load_checkpoint() as users of DeepSpeed know them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import thinwire
import torch
from engines import (
    BF16,
    Net,
    config_of,
    flat,
    make,
    same_bits,
    train,
    trained,
)
from local_ranks import by_ranks
from thinwire.comm import run_local_ranks


@by_ranks(2)
def test_client_state_comes_back(comm: Any, tmp_path: Path) -> None:
    state = {
        "epoch": 3,
        "best": 0.1 + 0.2,
        "name": "é\n",
        "lr": [1e-3, None, True],
        "n": {"a": {}},
    }

    engine = trained(comm, 1)
    own = state if comm.rank == 0 else {"epoch": 4}
    engine.save_checkpoint(tmp_path, "a", client_state=own)
    assert engine.load_checkpoint(tmp_path, "a")[1] == state
    _, found = engine.load_checkpoint(tmp_path, "a", load_optimizer_states=False)
    assert found == state
    assert engine.load_checkpoint(tmp_path, load_module_only=True)[1] == state
    engine.save_checkpoint(tmp_path, "b")
    assert engine.load_checkpoint(tmp_path)[1] == {}


@by_ranks(2)
def test_what_cannot_be_a_client_state_is_refused_on_all_ranks(
    comm: Any, tmp_path: Path
) -> None:
    engine = trained(comm, 1)
    with pytest.raises(
        (KeyError, thinwire.InvalidArgument), match="global_steps, optimizer"
    ):
        engine.save_checkpoint(
            tmp_path,
            client_state={"optimizer": 1, "global_steps": 2} if comm.rank == 0 else {},
        )
    with pytest.raises(KeyError, match="reserved"):
        engine.save_checkpoint(tmp_path, client_state={"module": 1})
    for value, text in (
        ({"a": [1, {"b": torch.zeros(1)}]}, r"client_state\['a'\]\[1\]\['b'\]"),
        ({"a": {1: 2}}, "names must be text"),
    ):
        with pytest.raises(thinwire.InvalidArgument, match=text):
            engine.save_checkpoint(tmp_path, client_state=value)
    assert not any(tmp_path.iterdir())


@by_ranks(2)
def test_tags_must_be_the_same_on_all_ranks(comm: Any, tmp_path: Path) -> None:
    engine = trained(comm, 1)
    with pytest.raises(thinwire.InvalidArgument, match='tag.*"a1" on rank 1'):
        engine.save_checkpoint(tmp_path, f"a{comm.rank}")
    for tag in ("", "..", "a/b", "latest", "x" * 300):
        with pytest.raises(thinwire.InvalidArgument, match="tag: must be a file name"):
            engine.save_checkpoint(tmp_path, tag)
    assert not any(tmp_path.iterdir())


def test_without_latest_nothing_is_loaded(tmp_path: Path, caplog: Any) -> None:
    def run(comm: Any) -> None:
        engine = make(comm, config_of())
        before = flat(engine.module)
        assert engine.load_checkpoint(tmp_path / "none") == (None, None)
        with pytest.raises(thinwire.Unavailable, match="no complete checkpoint|cannot"):
            engine.load_checkpoint(tmp_path, "missing")
        assert same_bits(before, flat(engine.module))
        train(engine, range(1))
        engine.save_checkpoint(tmp_path, "a", save_latest=False)
        assert engine.load_checkpoint(tmp_path) == (None, None)
        assert engine.load_checkpoint(tmp_path, "a")[0] is not None

    run_local_ranks(2, run)
    assert "has no file 'latest'" in caplog.text


def test_a_tag_that_is_used_again_has_the_newest(tmp_path: Path) -> None:
    def run(comm: Any) -> None:
        engine = make(comm, config_of())
        for step in range(4):
            train(engine, range(step, step + 1))
            engine.save_checkpoint(tmp_path, "best", client_state={"step": step})
        again = make(comm, config_of())
        assert again.load_checkpoint(tmp_path)[1] == {"step": 3}
        assert same_bits(flat(again.module), flat(engine.module))

    run_local_ranks(2, run)
    assert [p.name for p in (tmp_path / "best").glob("step-*")] == ["step-0000000004"]


@by_ranks(2)
def test_weights_alone_have_the_saved_masters(comm: Any, tmp_path: Path) -> None:
    engine = trained(comm, 3, **BF16)
    engine.save_checkpoint(tmp_path, "a")
    masters = torch.from_dlpack(engine._native.masters())
    for alone in ({"load_optimizer_states": False}, {"load_module_only": True}):
        other = make(comm, config_of(**BF16))
        other.load_checkpoint(tmp_path, "a", **alone)
        assert same_bits(torch.from_dlpack(other._native.masters()), masters)
        assert other.global_steps == (3 if "load_optimizer_states" in alone else 0)
        assert other.optimizer.state_dict()["thinwire"]["engine_steps"] == 0
        train(other, range(3, 4))
        assert other.was_step_applied()


@by_ranks(2)
def test_a_scheduler_goes_on(comm: Any, tmp_path: Path) -> None:
    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5], 0.5)

    engine = make(comm, config_of(), lr_scheduler=schedule)
    train(engine, range(3))
    engine.save_checkpoint(tmp_path, "a")
    train(engine, range(3, 7))
    again = make(comm, config_of(), lr_scheduler=schedule)
    again.load_checkpoint(tmp_path, "a")
    assert again.get_lr() == [0.005]
    train(again, range(3, 7))
    assert again.get_lr() == engine.get_lr() == [0.0025]
    assert same_bits(flat(again.module), flat(engine.module))
    fresh = make(comm, config_of(), lr_scheduler=schedule)
    fresh.load_checkpoint(tmp_path, "a", load_lr_scheduler_states=False)
    assert fresh.lr_scheduler.last_epoch == 0


@by_ranks(2)
def test_strictness(comm: Any, tmp_path: Path) -> None:
    class Larger(Net):
        def __init__(self, seed: int = 0) -> None:
            super().__init__(seed)
            self.more = torch.nn.Parameter(torch.ones(3))

    engine = trained(comm, 2)
    engine.save_checkpoint(tmp_path, "a")
    larger = make(comm, config_of(), model=Larger())
    with pytest.raises(thinwire.CorruptCheckpoint, match="more"):
        larger.load_checkpoint(tmp_path, "a")
    larger.load_checkpoint(tmp_path, "a", load_module_strict=False)
    assert torch.equal(larger.module.first.weight, engine.module.first.weight)
    assert torch.equal(larger.module.more, torch.ones(3))


@by_ranks(2)
def test_save_16bit_model(comm: Any, tmp_path: Path) -> None:
    engine = make(comm, config_of(**BF16))
    assert engine.save_16bit_model(tmp_path / "out")
    state = torch.load(tmp_path / "out" / "pytorch_model.bin", weights_only=True)
    assert state["first.weight"].dtype == torch.bfloat16
    assert torch.equal(state["first.weight"], engine.module.first.weight)
    assert "frozen" not in engine.module_state_dict(exclude_frozen_parameters=True)
    (tmp_path / "file").touch()
    comm.barrier()
    with pytest.raises(thinwire.Unavailable, match="file"):
        engine.save_16bit_model(tmp_path / "file" / "out")


@by_ranks(2)
def test_parameters_that_were_moved_take_what_is_loaded(
    comm: Any, tmp_path: Path
) -> None:
    engine = trained(comm, 2)
    engine.save_checkpoint(tmp_path)
    values = flat(engine.module)
    train(engine, range(2, 3))
    engine.module.to(torch.device("cpu", 0))  # copies every parameter
    engine.load_checkpoint(tmp_path)
    assert same_bits(flat(engine.module), values)

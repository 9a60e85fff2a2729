# SPDX-License-Identifier: Apache-2.0
"""thinwire.save, load and resume."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import optim_cases as cases
import pytest
import thinwire
import torch
from engines import Net, config_of, flat, make, same_bits, train, trained
from local_ranks import by_ranks
from thinwire import _core


@by_ranks(1)
def test_the_random_state_continues(comm: Any, tmp_path: Path) -> None:
    engine = trained(comm, 1)
    torch.manual_seed(17)
    engine.save_checkpoint(tmp_path, "a")
    drawn = torch.rand(3)
    again = make(comm, config_of())
    again.load_checkpoint(tmp_path, "a")
    assert torch.equal(torch.rand(3), drawn)


@by_ranks(2)
def test_an_optimizer_is_saved_and_continues(comm: Any, tmp_path: Path) -> None:
    model, optimizer = cases.made("OnebitAdam", comm)
    assert thinwire.checkpoint.resume(tmp_path, optimizer) is None
    cases.train(model, optimizer, range(4), comm.rank)
    seen = torch.arange(3) + 1
    report = thinwire.save(
        tmp_path,
        optimizer,
        extra={"epoch": 7, "seen": seen},
        own={"rank": comm.rank},
        module=model,
        durable=False,
    )
    assert (report.step, os.path.basename(report.path)) == (4, "step-0000000004")
    cases.train(model, optimizer, range(4, 8), comm.rank)
    again, other = cases.made("OnebitAdam", comm, seed=1)
    loaded = thinwire.load(tmp_path, other, module=again)
    assert (loaded.step, loaded.world, loaded.extra["epoch"]) == (4, 2, 7)
    assert torch.equal(loaded.extra["seen"], seen)
    assert loaded.own == {"rank": comm.rank}
    assert [own["rank"] for own in loaded.own_of_ranks] == [0, 1]
    cases.train(again, other, range(4, 8), comm.rank)
    assert cases.bits(again) == cases.bits(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@by_ranks(2)
def test_weights_under_the_next_step_lack_no_step(
    comm: Any, dtype: torch.dtype, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = cases.made("OnebitAdamUnder", comm, dtype=dtype)
    cases.train(model, optimizer, range(8), comm.rank)
    path = thinwire.save(tmp_path, optimizer, durable=False).path
    assert optimizer._native.optimizer.steps_behind == 1
    assert _core.inspect(path)[0]["steps_behind"] == 0
    optimizer.synchronize()
    for kind, weights_only in (("OnebitAdam", False), ("AdamW", True)):
        again, other = cases.made(kind, comm, seed=1, dtype=dtype)
        report = thinwire.load(tmp_path, other, weights_only=weights_only)
        assert not any("left out" in note for note in report.notes)
        assert cases.bits(again) == cases.bits(model)
        cases.train(again, other, range(8, 12), comm.rank)
        comm.require_same("parameters", cases.bits(again))
    assert "left out" not in caplog.text


@by_ranks(1)
def test_a_load_tells_which_numbers_it_replaced(comm: Any, tmp_path: Path) -> None:
    settings = {"lr": 1e-3, "weight_decay": 0.0}
    for call in (thinwire.save, thinwire.load):
        report = call(tmp_path, cases.made("OnebitAdam", comm, **settings)[1])
    assert report.notes == []
    _, other = cases.made("OnebitAdam", comm, lr=1e-5, weight_decay=0.5)
    assert thinwire.load(tmp_path, other).notes == [
        "param_groups[0]['lr'] is 0.001 now, as saved; the script had 1e-05",
        "param_groups[0]['weight_decay'] is 0 now, as saved; the script had 0.5",
    ]
    group = other.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (1e-3, 0.0)


@by_ranks(1)
def test_refusals_of_save_and_load(comm: Any, tmp_path: Path) -> None:
    engine = trained(comm, 1)
    theirs = torch.optim.Adam(Net().parameters())
    optimizer = thinwire.AdamW(Net().parameters(), process_group=comm)
    save, load = thinwire.save, thinwire.load
    refused: list[tuple[Any, Any, dict[str, Any], str]] = [
        (save, engine, {"durible": True}, "'durible'; did you mean 'durable'"),
        (save, engine, {"attachments": 5}, "attachments must be a dict, got 5"),
        (save, engine, {"attachments": "abc"}, "attachments must be a dict, got 'abc'"),
        (save, engine, {"local_steps": {}}, "local_steps: must be 'as_is'"),
        (save, engine, {"local_steps": "none"}, "local_steps: must be"),
        (save, engine, {"residuals": "mean"}, "'residuals' any more: leave it out"),
        (save, engine, {"step": 2}, "an engine's step is 1"),
        (save, engine, {"extra": {"a": [1]}}, r"extra\['a'\]: must be an int"),
        (save, engine, {"own": {"thinwire/a": 1}}, "'thinwire/'"),
        (save, optimizer, {"asynchronous": True}, "asynchronous: must be False"),
        (save, theirs, {}, "save: must be given an engine.*got Adam"),
        (load, engine, {"rename": "abc"}, "rename must be a .*got 'abc' of"),
        (load, engine, {"ignore": 5}, "ignore must be a .*got 5 of"),
        (load, engine, {"weight_only": True}, "did you mean 'weights_only'"),
        (load, engine, {}, "no complete checkpoint"),
        (load, theirs, {}, "load: must be given an engine.*got Adam"),
    ]
    for call, what, given, text in refused:
        with pytest.raises((TypeError, thinwire.Error), match=text):
            call(tmp_path, what, **given)
    with pytest.raises(thinwire.Unavailable, match="custom_load_fn"):
        engine.load_checkpoint(tmp_path, custom_load_fn=print)
    assert not any(tmp_path.iterdir())


@by_ranks(2)
def test_an_engine_resumes_and_saves_in_the_background(
    comm: Any, tmp_path: Path
) -> None:
    engine = make(comm, config_of())
    assert thinwire.resume(tmp_path, engine) is None
    train(engine, range(2))
    report = thinwire.save(tmp_path, engine, extra={"epoch": 1}, asynchronous=True)
    values = flat(engine.module)
    train(engine, range(2, 4))
    engine.wait_for_save()
    again = make(comm, config_of())
    loaded = thinwire.resume(tmp_path, again)
    assert loaded is not None and loaded.path == report.path
    assert (loaded.step, loaded.extra) == (2, {"epoch": 1})
    assert same_bits(flat(again.module), values)


@by_ranks(2)
def test_what_one_rank_refuses_all_do(comm: Any, tmp_path: Path) -> None:
    engine = trained(comm, 1)
    if comm.rank == 0:
        engine.module.first.weight.requires_grad_(False)
    with pytest.raises(thinwire.Error, match="'first.weight' was frozen"):
        engine.save_checkpoint(tmp_path)
    assert not any(tmp_path.iterdir())

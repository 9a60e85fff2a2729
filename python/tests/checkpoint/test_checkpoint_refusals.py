# SPDX-License-Identifier: Apache-2.0
"""What a load, a save and their arguments refuse: by name, on all ranks, and before
anything has changed."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import thinwire
import torch
from engines import ONEBIT, Net, config_of, flat, make, same_bits, train, trained
from local_ranks import by_ranks
from thinwire import _checkpoints, checkpoint
from thinwire.comm import run_local_ranks
from thinwire.engine import _saving

DEEP = "[" * 100_000


def counters(text: str) -> dict[str, Any]:
    return {"thinwire/counters": text}


def scheduler(state: Any) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    data = bytearray(file.getvalue())
    return {"thinwire/lr_scheduler": torch.frombuffer(data, dtype=torch.uint8)}


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no_json": (counters("{"), "thinwire/counters"),
    "deep": (counters(DEEP), "thinwire/counters"),
    "a_list": (counters("[1]"), "thinwire/counters"),
    "infinite": (counters('{"global_steps": Infinity}'), "global_steps must be"),
    "text": (counters('{"micro_steps": "x"}'), "micro_steps must be"),
    "negative": (counters('{"global_samples": -1}'), "global_samples must be"),
    "beyond": (counters('{"global_steps": 9007199254740993}'), "global_steps must be"),
    "scheduler": (
        {"thinwire/lr_scheduler": torch.zeros(9, dtype=torch.uint8)},
        "scheduler's state cannot be read",
    ),
    "no_dict": (scheduler([1]), "scheduler's state must be a dict"),
}


def engine_of(comm: Any) -> thinwire.Engine:
    model = Net(seed=comm.rank)

    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 2)

    return make(comm, config_of(**ONEBIT), model=model, lr_scheduler=schedule)


def refuses(comm: Any, load: Callable[[thinwire.Engine], Any], match: str) -> None:
    """CorruptCheckpoint, and the engine goes on as if nobody had tried."""
    engine, same = engine_of(comm), engine_of(comm)
    for one in (engine, same):
        train(one, range(5, 7))
    with pytest.raises(thinwire.CorruptCheckpoint, match=match):
        load(engine)
    assert same_bits(flat(engine.module), flat(same.module))
    for name in ("global_steps", "micro_steps", "global_samples"):
        assert getattr(engine, name) == getattr(same, name)
    assert engine.lr_scheduler.state_dict() == same.lr_scheduler.state_dict()
    for one in (engine, same):
        train(one, range(7, 9))
    assert same_bits(flat(engine.module), flat(same.module))


@pytest.mark.parametrize("name", BROKEN)
def test_what_the_engine_keeps_is_checked_before_anything_changes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, match = BROKEN[name]
    pack = _saving.pack
    monkeypatch.setattr(_saving, "pack", lambda *own: pack(*own) | broken)

    def run(comm: Any) -> None:
        engine = engine_of(comm)
        train(engine, range(4))
        engine.save_checkpoint(tmp_path, "a")
        refuses(comm, lambda other: other.load_checkpoint(tmp_path), match)
        refuses(comm, lambda other: thinwire.load(tmp_path / "a", other), match)

    run_local_ranks(2, run)


def test_a_client_state_that_is_no_json_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_saving, "to_text", lambda state: DEEP)

    def run(comm: Any) -> None:
        engine = engine_of(comm)
        train(engine, range(4))
        engine.save_checkpoint(tmp_path, "a")
        refuses(comm, lambda other: other.load_checkpoint(tmp_path), "client_state")

    run_local_ranks(2, run)


@by_ranks(2)
def test_one_ranks_random_state_is_enough_for_all_to_refuse(
    comm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(comm)
    train(engine, range(4))
    both = _checkpoints.extras_of(None, None)
    if comm.rank == 1:
        both[1][_checkpoints.RANDOM] = torch.zeros(3, dtype=torch.uint8)
    options = _checkpoints.save_options({})
    engine._save(str(tmp_path), both, options)
    refuses(
        comm,
        lambda other: thinwire.load(tmp_path, other),
        "rank 1: the saved random state",
    )


@pytest.mark.parametrize(
    "options", [{"ignore": ["param.0"]}, {"weights_only": True}, {"share_reads": False}]
)
@by_ranks(2)
def test_load_options_that_differ_are_refused_on_all_ranks(
    comm: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    optimizer = thinwire.AdamW(Net(seed=3).parameters(), process_group=comm)
    thinwire.save(tmp_path, optimizer, durable=False)
    with pytest.raises(thinwire.InvalidArgument, match="load options"):
        thinwire.load(tmp_path, optimizer, **(options if comm.rank else {}))
    assert thinwire.load(tmp_path, optimizer, **options).step == 0


def test_rates_of_a_state_are_finite() -> None:
    optimizer = thinwire.AdamW(Net().parameters())
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = math.nan
    with pytest.raises(thinwire.CorruptCheckpoint, match="'lr'.* must be finite"):
        optimizer.load_state_dict(state)


# ---- what rank 0 alone reads


@pytest.mark.parametrize("latest", [b"\xff\xfe a", b"../../etc", b"a\0b"])
@by_ranks(2)
def test_all_ranks_learn_that_latest_cannot_be_read(
    comm: Any, latest: bytes, tmp_path: Path
) -> None:
    engine = trained(comm, 1)
    engine.save_checkpoint(tmp_path, "a")
    if comm.rank == 0:
        (tmp_path / "latest").write_bytes(latest)
    comm.gather_texts("")
    with pytest.raises(
        (thinwire.Unavailable, thinwire.InvalidArgument), match="UTF-8|tag: must be"
    ):
        engine.load_checkpoint(tmp_path)


@by_ranks(2)
def test_all_ranks_learn_what_rank_0_raises(comm: Any) -> None:
    engine = make(comm, config_of())

    def fail() -> str:
        raise LookupError("nothing there")

    with pytest.raises(thinwire.Unavailable, match="LookupError: nothing there"):
        engine._checkpoints.on_rank_0(fail)


# ---- arguments


@pytest.mark.parametrize("tag", [" b", "b ", " b\t ", "ä" * 100])
@by_ranks(2)
def test_a_tag_is_found_again_as_it_was_given(
    comm: Any, tag: str, tmp_path: Path
) -> None:
    engine = trained(comm, 1)
    engine.save_checkpoint(tmp_path, tag)
    path, _ = engine.load_checkpoint(tmp_path)
    assert path is not None
    assert Path(path).parent == tmp_path / tag


@pytest.mark.parametrize("tags", [("a", "b"), ("a", None)])
@by_ranks(2)
def test_tags_that_differ_between_ranks_are_refused(
    comm: Any, tags: tuple[str | None, ...], tmp_path: Path
) -> None:
    engine = engine_of(comm)
    for tag in ("a", "b"):
        engine.save_checkpoint(tmp_path, tag)
    before = flat(engine.module)
    with pytest.raises(thinwire.InvalidArgument, match="load_checkpoint: tag"):
        engine.load_checkpoint(tmp_path, tags[comm.rank])
    assert same_bits(flat(engine.module), before)
    assert engine.load_checkpoint(tmp_path, "a")[0] is not None


@by_ranks(2)
def test_arguments_that_no_file_can_hold_are_named(comm: Any, tmp_path: Path) -> None:
    refused = thinwire.InvalidArgument

    engine = trained(comm, 1)
    for extra, match in (
        ({"a": 2**70}, r"extra\['a'\]: must be in"),
        ({"a": "\udce4"}, r"extra\['a'\]: must be text that UTF-8"),
        ({"\udce4": 1}, "extra: must be text that UTF-8"),
    ):
        with pytest.raises(refused, match=match):
            thinwire.save(tmp_path, engine, extra=extra)
        with pytest.raises(refused, match=match.replace("extra", "own")):
            thinwire.save(tmp_path, engine, own=extra)
    for path in ("a\0b", b"\xff", "\udcff", None, "", 3):
        with pytest.raises(refused, match="root: must be"):
            thinwire.save(path, engine)  # type: ignore[arg-type]
        with pytest.raises(refused, match="path: must be"):
            thinwire.load(path, engine)  # type: ignore[arg-type]
        with pytest.raises(refused, match="save_dir: must be"):
            engine.save_checkpoint(path)  # type: ignore[arg-type]
        with pytest.raises(refused, match="load_dir: must be"):
            engine.load_checkpoint(path)  # type: ignore[arg-type]
    for tag in ("\udce4", "ä" * 101, "a\r"):
        with pytest.raises(refused, match="tag: must be"):
            engine.save_checkpoint(tmp_path, tag)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_of_a_configuration_that_is_not_finite_is_named(value: float) -> None:
    config = config_of()
    config["optimizer"]["params"]["betas"] = (0.9, value)
    with pytest.raises(
        thinwire.InvalidArgument, match=r"optimizer\.params\.betas\[1\] must be finite"
    ):
        run_local_ranks(1, lambda comm: make(comm, config))


def test_a_variable_that_is_not_utf8_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THINWIRE_TIMEOUT", "5s\udcff")
    with pytest.raises(thinwire.InvalidArgument, match="THINWIRE_TIMEOUT must be"):
        thinwire.AdamW(Net().parameters())


def test_attachments_that_differ_are_a_warning(tmp_path: Path, caplog: Any) -> None:
    def run(comm: Any) -> None:
        engine = trained(comm, 1)
        same = {"a.txt": b"same"}
        thinwire.save(tmp_path, engine, attachments=same)
        only_first = same if comm.rank == 0 else {}
        thinwire.save(tmp_path, engine, attachments=only_first)
        assert "attachments" not in caplog.text
        own = {"a.txt": f"rank {comm.rank}".encode()}
        report = thinwire.save(tmp_path, engine, attachments=own)
        assert (Path(report.path) / "a.txt").read_bytes() == b"rank 0"

    run_local_ranks(2, run)
    assert "those of rank 1 differ from rank 0's" in caplog.text


@pytest.mark.parametrize(
    "text,match",
    [
        ('[{"weight_decay": NaN}]', "'weight_decay' must be finite and >= 0, got nan"),
        ('[{"weight_decay": -1}]', "'weight_decay' must be finite and >= 0, got -1"),
        ('[{"weight_decay": "x"}]', "'weight_decay': must be a number, got 'x'"),
        ('[{"weight_decay": 1e39}]', "'weight_decay' must be .* in fp32, got 1e"),
        ('[{"params": 3}]', "'params' must be absent, got 3"),
        ("{", "param_groups cannot be used"),
        ("[5]", "param_groups cannot be used"),
        ('[{"a": {}}]', "{} is neither a number nor text"),
        (DEEP, "param_groups cannot be used"),
    ],
)
@pytest.mark.quick
def test_groups_that_no_step_could_use_are_refused(
    text: str, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> tuple[torch.nn.Module, Any]:
        model = torch.nn.Linear(3, 2)
        return model, thinwire.AdamW(model.named_parameters(), lr=0.5)

    _, saved = made()
    monkeypatch.setattr(checkpoint, "to_text", lambda groups: text)
    thinwire.save(tmp_path, saved)
    model, optimizer = made()
    before, groups = flat(model), repr(optimizer.param_groups)
    with pytest.raises(thinwire.CorruptCheckpoint, match=match):
        thinwire.load(tmp_path, optimizer)
    assert same_bits(flat(model), before) and repr(optimizer.param_groups) == groups
    optimizer.step()


@pytest.mark.quick
def test_what_the_optimizer_was_made_with_stays_whatever_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = thinwire.AdamW(model.named_parameters(), lr=0.5, eps=1e-7)
    monkeypatch.setattr(checkpoint, "to_text", lambda groups: '[{"eps": 5, "own": 1}]')
    thinwire.save(tmp_path, optimizer)
    thinwire.load(tmp_path, optimizer)
    assert optimizer.param_groups[0]["eps"] == 1e-7
    assert optimizer.param_groups[0]["own"] == 1
    optimizer.step()

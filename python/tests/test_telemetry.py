# SPDX-License-Identifier: Apache-2.0
"""Steps as charts: python -m thinwire telemetry, and the monitors of a configuration."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import optim_cases as cases
import pytest
import ranks
import thinwire
from engines import config_of, loss_of, make
from thinwire import _monitors
from thinwire.comm import run_local_ranks

needs_tensorboard = pytest.mark.skipif(
    not importlib.util.find_spec("tensorboard"), reason="pip install tensorboard"
)
LINES = [
    {"step": 1, "time": 1.5, "phase": "exact", "applied": True, "grad_norm": None},
    {"step": 2, "time": 2.5, "phase": "compressed", "seconds": {"step": 0.25}},
    {"step": 2, "val_loss": 4.5, "waited_for": "a.weight"},
    {"step": 300, "time": 9.0, "lr": 0.5},
    {"step": 300, "time": 9.5, "lr": 0.25, "grad_norm": -1e39},
]
CHARTS = [
    ["thinwire/applied", 1.0, 1, 1.5],
    ["thinwire/phase", 0.0, 1, 1.5],
    ["thinwire/phase", 1.0, 2, 2.5],
    ["thinwire/seconds/step", 0.25, 2, 2.5],
    ["thinwire/val_loss", 4.5, 2, 2.5],
    ["thinwire/grad_norm", -math.inf, 300, 9.5],
    ["thinwire/lr", 0.25, 300, 9.5],
]


def charts_in(directory: Path) -> list[list[Any]]:
    """[name, value, step, time] of each point, in the file's order."""
    from tensorboard.backend.event_processing import event_file_loader

    (path,) = directory.glob("events.out.tfevents.*")
    events = event_file_loader.LegacyEventFileLoader(str(path)).Load()
    return [
        [point.tag, point.simple_value, event.step, event.wall_time]
        for event in events
        for point in event.summary.value
    ]


def convert(*paths: Path) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "thinwire", "telemetry", "tensorboard")
    return ranks.program(*command, *paths)


@pytest.mark.quick
@needs_tensorboard
def test_every_number_of_a_line_becomes_a_point(tmp_path: Path) -> None:
    """Of two files of one run, such as the engine's lines and train_gpt's."""
    file, other = tmp_path / "steps.jsonl", tmp_path / "metrics.jsonl"
    torn = '{"step": 3, "ti'
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES) + torn)
    other.write_text('{"step": 300, "time": 10, "lr": 0.25, "loss": 3.5}\n')
    *before, (_, lr, step, _) = CHARTS
    more = [["thinwire/loss", 3.5, step, 10.0], ["thinwire/lr", lr, step, 10.0]]
    for files, points in (([file], CHARTS), ([file, other], before + more)):
        done = convert(
            *files, tmp_path / "charts"
        )  # the second time replaces the first
        assert done.returncode == 0, done.stderr
        assert f"tensorboard --logdir {tmp_path / 'charts'} shows them" in done.stdout
        assert charts_in(tmp_path / "charts") == points


@pytest.mark.quick
@pytest.mark.parametrize(
    "text", ["[]\n", '{"step": "1"}\n', '{"step": 1\n{}\n', "{}\n"]
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text('{"step": 1}\n' + text)
    done = convert(file, tmp_path / "charts")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"line 2 of '{file}' must be an object with a step" in done.stderr
    assert not (tmp_path / "charts").exists()
    done = convert(tmp_path / "none", tmp_path / "charts")
    assert done.returncode == 1
    assert "cannot read the file" in done.stderr


@pytest.mark.quick
def test_without_tensorboard_nothing_is_made_and_the_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    net = cases.model()
    before = [p.data_ptr() for p in net.parameters()]
    with pytest.raises(thinwire.Unavailable, match="pip install tensorboard"):
        thinwire.initialize(model=net, config=config_of(**sections(tmp_path / "out")))
    assert [p.data_ptr() for p in net.parameters()] == before
    (tmp_path / "steps.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(thinwire.Unavailable, match="pip install tensorboard"):
        _monitors.to_tensorboard([str(tmp_path / "steps.jsonl")], str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def sections(directory: Path, **changes: Any) -> dict[str, Any]:
    base = {"enabled": True, "output_path": str(directory), "job_name": "job"}
    return {name: base | changes for name in _monitors.SECTIONS}


@needs_tensorboard
def test_an_engine_follows_deepspeeds_keys(tmp_path: Path) -> None:
    config = config_of(**sections(tmp_path), gradient_accumulation_steps=2)

    def body(comm: Any) -> list[float]:
        engine = make(comm, config)
        losses = []
        for step in range(4):
            loss = loss_of(engine, comm.rank, step)
            losses.append(float(loss.detach()))
            engine.backward(loss)
            engine.step()
        return losses

    losses = run_local_ranks(2, body)[0]
    expected = [(losses[0] + losses[1]) / 2, (losses[2] + losses[3]) / 2]
    with open(tmp_path / "job" / "Train_Samples_train_loss.csv") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["step", "train_loss"]
    samples = [16, 32]  # 2 ranks, 2 backwards of 4
    assert [int(row[0]) for row in rows[1:]] == samples
    assert [float(row[1]) for row in rows[1:]] == expected
    points = charts_in(tmp_path / "job")
    assert [p[2] for p in points if p[0] == "Train/Samples/lr"] == samples
    names = {p[0] for p in points}
    assert {"Train/Samples/loss_scale", "thinwire/bytes_sent"} <= names
    assert not _monitors.monitors_of(sections(tmp_path / "off", enabled=False))
    assert not (tmp_path / "off").exists()


@pytest.mark.parametrize("section", _monitors.SECTIONS)
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (True, "must be an object"),
        ({"enabled": 1}, ".enabled: must be bool"),
        ({"output_path": 3}, ".output_path: must be str"),
        ({"enabled": True, "jobname": "x"}, ".jobname: there is no such key"),
    ],
)
def test_a_wrong_section_is_refused(section: str, given: Any, text: str) -> None:
    with pytest.raises(thinwire.InvalidArgument) as raised:
        _monitors.monitors_of({section: given})
    assert f"{section}" in str(raised.value)
    assert text in str(raised.value)


@needs_tensorboard
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    section = {"enabled": True, "output_path": str(tmp_path / "file")}
    for name in _monitors.SECTIONS:
        with pytest.raises(thinwire.Unavailable, match=f"{name}: .*file"):
            _monitors.monitors_of({name: section})


def lines_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.quick
def test_an_optimizer_writes_a_line_per_step(tmp_path: Path) -> None:
    every = {"path": tmp_path / "all.jsonl", "every": 2, "every_rank": True}

    def body(comm: Any) -> list[Any]:
        reports = []
        for telemetry in (tmp_path / "steps.jsonl", every):
            net, optimizer = cases.made("OnebitAdam", comm, telemetry=telemetry)
            optimizer.register_step_post_hook(lambda o, *_: reports.append(o.report))
            cases.train(net, optimizer, range(6), comm.rank)
        return reports

    reports, _ = run_local_ranks(2, body)
    lines = lines_in(tmp_path / "steps.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line, report in zip(lines, reports[:6], strict=True):
        for name in ("applied", "phase", "grad_norm", "bytes_sent", "collectives"):
            assert line[name] == getattr(report, name)
        assert line["lr"] == 1e-2
        assert line["seconds"]["step"] == report.seconds
    for rank in range(2):
        own = lines_in(tmp_path / f"all.jsonl.rank{rank}")
        assert [line["step"] for line in own] == [2, 4, 6]


@pytest.mark.quick
def test_a_file_of_steps_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net = cases.model()
    missing = tmp_path / "no" / "steps.jsonl"
    optimizer = cases.make("OnebitAdam", net.parameters(), telemetry=missing)
    cases.train(net, optimizer, range(3))
    assert caplog.text.count("cannot be opened: No such file or directory") == 1
    missing.parent.mkdir()
    cases.train(net, optimizer, range(3, 5))
    assert [line["step"] for line in lines_in(missing)] == [4, 5]


@pytest.mark.quick
@pytest.mark.parametrize(
    "given,text",
    [
        ({"path": ""}, "telemetry.'path'.: must be a path, got ''"),
        (3, "telemetry.'path'.: must be a path, got 3"),
        ("a\0b", "telemetry.'path'.: must be a path without NUL"),
        ({"path": "x", "every": 0}, "telemetry.'every'.: must be >= 1, got 0"),
        ({"path": "x", "evry": 1}, "must have the keys path, every, .* got 'evry'"),
        (
            {"path": "x", "every_rank": 1},
            "telemetry.'every_rank'.: must be bool, got 1",
        ),
    ],
)
def test_wrong_telemetry_is_refused_by_its_key(given: Any, text: str) -> None:
    with pytest.raises((thinwire.Error, TypeError), match=text):
        cases.make("OnebitAdam", cases.model().parameters(), telemetry=given)

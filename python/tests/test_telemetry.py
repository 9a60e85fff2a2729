# SPDX-License-Identifier: Apache-2.0
"""Steps as charts: python -m thinwire telemetry, and the monitors of a configuration."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import thinwire
from engines import config_of, loss_of, make, train
from thinwire import _monitors
from thinwire.comm import run_local_ranks

# What tensorboardX has, as far as it is used; no package that writes such files is needed.
WRITER = """
import json, os
class SummaryWriter:
    def __init__(self, directory):
        os.makedirs(directory, exist_ok=True)
        self.path = os.path.join(directory, "charts.jsonl")
    def add_scalar(self, name, value, at, time=None):
        with open(self.path, "a") as file:
            file.write(json.dumps([name, value, at, time]) + "\\n")
    def flush(self):
        pass
"""
LINES = [
    {"step": 1, "time": 1.5, "phase": "exact", "applied": True, "grad_norm": None},
    {"step": 2, "time": 2.5, "phase": "compressed", "seconds": {"step": 0.25}},
    {"step": 2, "val_loss": 4.5, "waited_for": "a.weight"},
]
CHARTS = [
    ["thinwire/phase", 0.0, 1, 1.5],
    ["thinwire/applied", 1.0, 1, 1.5],
    ["thinwire/phase", 1.0, 2, 2.5],
    ["thinwire/seconds/step", 0.25, 2, 2.5],
    ["thinwire/val_loss", 4.5, 2, None],
]


@pytest.fixture
def with_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package called tensorboardX, and torch's writer unavailable."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "tensorboardX.py").write_text(WRITER)
    (packages / "tensorboard.py").write_text("raise ImportError('none here')\n")
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=":")
    for name in ("tensorboardX", "tensorboard", "torch.utils.tensorboard"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def charts_in(directory: Path) -> list[list[Any]]:
    text = (directory / "charts.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def convert(file: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "thinwire", "telemetry", "tensorboard", file, directory],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.quick
def test_every_number_of_a_line_becomes_a_point(with_writer: Path) -> None:
    file = with_writer / "steps.jsonl"
    torn = '{"step": 3, "ti'
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES) + torn)
    done = convert(file, with_writer / "charts")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 lines of ")
    assert charts_in(with_writer / "charts") == CHARTS


@pytest.mark.quick
@pytest.mark.parametrize(
    "text", ["[]\n", '{"step": "1"}\n', '{"step": 1\n{}\n', "{}\n"]
)
def test_a_file_of_something_else_is_refused(with_writer: Path, text: str) -> None:
    file = with_writer / "steps.jsonl"
    file.write_text('{"step": 1}\n' + text)
    done = convert(file, with_writer / "charts")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"line 2 of '{file}' must be an object with a step" in done.stderr
    assert not (with_writer / "charts").exists()
    done = convert(with_writer / "none", with_writer / "charts")
    assert done.returncode == 1
    assert "cannot read the file" in done.stderr


def test_without_a_writer_it_says_what_to_install(with_writer: Path) -> None:
    broken = with_writer / "packages" / "tensorboardX.py"
    broken.write_text("raise ImportError('none here')\n")
    file = with_writer / "steps.jsonl"
    file.write_text('{"step": 1}\n')
    done = convert(file, with_writer / "charts")
    assert done.returncode == 1
    assert "pip install tensorboard" in done.stderr


def sections(directory: Path, **changes: Any) -> dict[str, Any]:
    base = {"enabled": True, "output_path": str(directory), "job_name": "job"}
    return {name: base | changes for name in _monitors.SECTIONS}


def test_an_engine_follows_deepspeeds_keys(with_writer: Path) -> None:
    config = config_of(**sections(with_writer), gradient_accumulation_steps=2)

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
    with open(with_writer / "job" / "Train_Samples_train_loss.csv") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["step", "train_loss"]
    samples = [16, 32]  # 2 ranks, 2 backwards of 4
    assert [int(row[0]) for row in rows[1:]] == samples
    assert [float(row[1]) for row in rows[1:]] == expected
    points = charts_in(with_writer / "job")
    assert [p[2] for p in points if p[0] == "Train/Samples/lr"] == samples
    names = {p[0] for p in points}
    assert {"Train/Samples/loss_scale", "thinwire/bytes_sent"} <= names


def test_monitors_change_no_result(with_writer: Path) -> None:
    def bits(config: dict[str, Any]) -> list[Any]:
        def body(comm: Any) -> list[float]:
            engine = make(comm, config)
            train(engine, range(3))
            return [float(p.detach().sum()) for p in engine.parameters()]

        return run_local_ranks(2, body)

    assert bits(config_of(**sections(with_writer))) == bits(config_of())
    off = sections(with_writer / "off", enabled=False)
    bits(config_of(**off))
    assert not (with_writer / "off").exists()


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


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    section = {"enabled": True, "output_path": str(tmp_path / "file")}
    with pytest.raises(thinwire.Unavailable, match="csv_monitor: .*file"):
        _monitors.monitors_of({"csv_monitor": section})

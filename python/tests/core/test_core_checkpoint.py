# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of native engines and optimizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from core_cases import (
    Run,
    Trained,
    all_options,
    config,
    scratch,
)
from thinwire import _core, errors
from thinwire.comm import run_local_ranks

pytestmark = pytest.mark.quick


class Beside:
    """A frozen parameter, a flag and a tied name."""

    def __init__(self, value: float) -> None:
        self.frozen = torch.full((2, 3), value).bfloat16()
        self.flag = torch.tensor([value > 0, False])

    def others(self) -> _core.Others:
        return _core.Others(
            [
                ("frozen", self.frozen.shape, self.frozen.view(-1), False),
                ("flag", (2,), self.flag, True),
            ],
            [("tied", "w")],
        )


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_checkpoint_goes_on_with_the_same_bits(
    tmp_path: Path, asynchronous: bool
) -> None:
    root = str(tmp_path / "run")
    chosen = config(all_options()["onebit_adam"])
    progress: list[tuple[int, int]] = []

    def save(comm: _core.Communicator) -> torch.Tensor:
        trained, beside = Trained(comm, chosen), Beside(1)
        trained.engine.set_others(beside.others)
        assert trained.engine.resume(root) is None
        trained.train(4)
        options = scratch(asynchronous)
        options.attachments = [("ds_config.json", b"{}")]
        options.progress = lambda done, total: progress.append((done, total))
        extra = _core.Extra(
            {"epoch": 3, "loss": 0.5, "name": "x"},
            {"random": torch.arange(comm.rank + 2, dtype=torch.uint8)},
        )
        report = trained.engine.save(root, extra, options)
        trained.engine.wait_for_save()
        assert not trained.engine.is_saving
        assert (Path(report.path) / "ds_config.json").read_text() == "{}"
        assert (report.step, report.path) == (4, root + "/step-0000000004")
        return trained.train(2)

    def load(comm: _core.Communicator) -> torch.Tensor:
        trained, beside = Trained(comm, chosen, seed=9), Beside(0)
        trained.engine.set_others(beside.others)
        report = trained.engine.load(root)
        assert (report.step, report.world, report.optimizer) == (4, 2, "onebit_adam")
        assert report.common == {"epoch": 3, "loss": 0.5, "name": "x"}
        assert torch.from_dlpack(report.own["random"]).tolist() == list(
            range(comm.rank + 2)
        )
        assert len(report.own_of_ranks) == 2
        assert json.loads(report.config)["optimizer"]["type"] == "OneBitAdam"
        assert set(beside.frozen.flatten().tolist()) == {1.0}
        assert beside.flag.tolist() == [True, False]
        return trained.train(2)

    saved, loaded = run_local_ranks(2, save), run_local_ranks(2, load)
    assert torch.equal(saved[0], saved[1])
    assert torch.equal(saved[0], loaded[0])
    assert torch.equal(saved[0], loaded[1])
    assert progress
    assert progress[-1][0] == progress[-1][1]


def test_another_number_of_ranks_goes_on(tmp_path: Path) -> None:
    root = str(tmp_path)

    def save(comm: _core.Communicator) -> torch.Tensor:
        (trained := Trained(comm, config(zero_stage=1))).train(2)
        trained.engine.save(root, None, scratch())
        return trained.params

    def load(comm: _core.Communicator) -> torch.Tensor:
        trained = Trained(comm, config(), seed=9)
        report = trained.engine.load(root)
        assert any("saved by 2 ranks, loaded by 3" in note for note in report.notes)
        assert report.own == {}
        return trained.params

    saved, loaded = run_local_ranks(2, save), run_local_ranks(3, load)
    assert torch.equal(saved[0], loaded[2])
    _core.take_log()
    run_local_ranks(3, load)
    assert any("saved by 2 ranks" in text for _, text in _core.take_log())
    assert _core.take_log() == []


def test_retention(tmp_path: Path) -> None:
    trained = Trained(_core.local_group(1)[0], config())
    for _ in range(3):
        trained.train(1)
        trained.engine.save(str(tmp_path), None, scratch())
    trained.engine.retain(str(tmp_path), 1, 1)
    assert len(_core.inspect(str(tmp_path))) == 3
    trained.engine.retain(str(tmp_path), 1)
    assert [found["step"] for found in _core.inspect(str(tmp_path))] == [3]


def test_others_that_raise_stop_all_ranks(tmp_path: Path) -> None:
    def save(comm: _core.Communicator) -> str:
        trained = Trained(comm, config())

        def others() -> Any:
            if comm.rank == 1:
                raise KeyError("mine")
            return _core.Others()

        trained.engine.set_others(others)
        kind = KeyError if comm.rank == 1 else errors.FailedPrecondition
        with pytest.raises(kind) as raised:
            trained.engine.save(str(tmp_path), None, scratch())
        trained.engine.set_others(lambda: 3)
        with pytest.raises(
            errors.InvalidArgument, match="others must return an Others"
        ):
            trained.engine.save(str(tmp_path), None, scratch())
        trained.engine.set_others(None)
        trained.engine.save(str(tmp_path), None, scratch())
        return str(raised.value)

    assert run_local_ranks(2, save) == ["rank 1 gave up: KeyError: 'mine'", "'mine'"]


def test_wrong_others_are_refused() -> None:
    with pytest.raises(
        errors.InvalidArgument, match="'x' must have as many values as its shape, 6"
    ):
        _core.Others([("x", (2, 3), torch.zeros(5), False)])
    with pytest.raises(TypeError, match="tensors: 'x' must be a writable array"):
        _core.Others([("x", (2, 3), torch.zeros(2, 3), False)])
    with pytest.raises(TypeError, match="others must be callable or None"):
        Trained(_core.local_group(1)[0], config()).engine.set_others(3)
    with pytest.raises(TypeError, match="progress must be callable or None"):
        _core.SaveOptions().progress = 3


def test_optimizers_are_saved_and_loaded(tmp_path: Path) -> None:
    root = str(tmp_path)

    def save(comm: _core.Communicator) -> torch.Tensor:
        run = Run(comm, config(all_options()["zero_one_adam"]))
        run.train(6)
        report = _core.save(
            comm,
            run.layout,
            run.params,
            run.optimizer,
            root,
            6,
            semantics="corrected",
            config='{"mine": 1}',
            others=Beside(1).others(),
            extra=_core.Extra({"epoch": 2}),
            options=scratch(),
        )
        assert report.step == 6
        torch.manual_seed(comm.rank)
        run.optimizer.step(run.params, torch.randn(run.layout.size))
        return run.params

    def load(comm: _core.Communicator) -> torch.Tensor:
        run, beside = Run(comm, config(all_options()["zero_one_adam"])), Beside(0)
        run.params.zero_()
        arguments = (comm, run.layout, run.params, run.optimizer)
        report = _core.load(*arguments, root, others=beside.others())
        assert (report.step, report.config, report.common) == (
            6,
            '{"mine": 1}',
            {"epoch": 2},
        )
        assert beside.flag.tolist() == [True, False]
        assert run.optimizer.steps == 6
        assert _core.resume(*arguments, root + "/none") is None
        torch.manual_seed(comm.rank)
        run.optimizer.step(run.params, torch.randn(run.layout.size))
        return run.params

    # One thread at a time draws from torch's generator.
    saved, loaded = run_local_ranks(1, save), run_local_ranks(1, load)
    assert torch.equal(saved[0], loaded[0])


def test_weights_alone(tmp_path: Path) -> None:
    comm = _core.local_group(1)[0]
    run = Run(comm, config())
    run.train(2)
    arguments = (comm, run.layout, run.params, run.optimizer)
    _core.save(*arguments, str(tmp_path), 2, options=scratch())
    saved = run.params.clone()
    run.train(1)
    options = _core.LoadOptions()
    options.weights_only = True
    _core.load(*arguments, str(tmp_path), options=options)
    assert torch.equal(run.params, saved)
    assert run.optimizer.steps == 3


def test_damage_is_found(tmp_path: Path) -> None:
    comm = _core.local_group(1)[0]
    run = Run(comm, config())
    arguments = (comm, run.layout, run.params, run.optimizer)
    path = Path(_core.save(*arguments, str(tmp_path), 1, options=scratch()).path)
    (found,) = _core.inspect(str(path))
    assert (found["complete"], found["world"], found["parameters"]) == (True, 1, 1257)
    whole = _core.verify(str(path))
    assert (whole["good"], whole["damages"], whole["nonfinite"]) == (True, [], 0)
    weights = path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    verdict = _core.verify(str(path))
    assert not verdict["good"]
    assert verdict["damages"][0]["file"].endswith("model.safetensors")
    before = run.params.clone()
    with pytest.raises(errors.CorruptCheckpoint, match="model.safetensors"):
        _core.load(*arguments, str(path))
    assert torch.equal(run.params, before)

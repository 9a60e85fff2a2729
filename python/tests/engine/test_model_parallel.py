# SPDX-License-Identifier: Apache-2.0
"""Engines and optimizers of models that ranks hold together, by an mpu."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import thinwire
import torch
from local_ranks import by_ranks

pytestmark = pytest.mark.quick

NORM = (9 + 16 + 4) ** 0.5  # of two parts, and of what both ranks hold


def grid_of(comm: Any, only_tensor: bool = False) -> Any:
    """Ranks 0 and 1 hold a model together, and so do ranks 2 and 3."""
    model = comm.split(comm.rank // 2, comm.rank)
    data = comm.split(comm.rank % 2, comm.rank)
    name = f"get_{'tensor_' * only_tensor}model_parallel_group"
    return SimpleNamespace(
        get_data_parallel_group=lambda: data, **{name: lambda: model}
    )


class Half(torch.nn.Module):
    """Gradients are 3 for one part and 4 for the other, and 2 for what both hold."""

    def __init__(self, half: int, marked: str = "") -> None:
        super().__init__()
        self.both = torch.nn.Parameter(torch.ones(1))
        self.part = torch.nn.Parameter(torch.full((1,), 1.0 if marked else half + 2.0))
        self.wide = torch.nn.Parameter(torch.ones(1))
        if marked:
            setattr(self.part, marked, True)
            setattr(self.both, marked, False)
        self.slope = 3.0 + half

    def forward(self, noise: float = 0) -> torch.Tensor:
        parts = self.part.float() * (self.slope + noise) + self.both.float() * 2.0
        return (parts + self.wide.float() * 0).sum()


def config_of(kind: str, stage: int, precision: str, **more: Any) -> dict[str, Any]:
    freeze = {"freeze_step": 2} if kind.startswith("OneBit") else {}
    freeze |= {"var_freeze_step": 2} if kind.startswith("Zero") else {}
    scale = {"initial_scale_power": 4} if precision == "fp16" else {}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": kind, "params": {"lr": 1e-3, **freeze}},
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 1.0,
        **({} if precision == "fp32" else {precision: {"enabled": True, **scale}}),
        **more,
    }


ENGINES: dict[str, tuple[Any, ...]] = {
    **{f"{p}, stage {s}": ("AdamW", s, p) for p in ("fp32", "fp16") for s in range(3)},
    **{kind: (kind, 0, "fp32") for kind in ("OneBitAdam", "OneBitLamb", "ZeroOneAdam")},
    "outer": ("AdamW", 0, "fp32", {"thinwire": {"outer": {"sync_every": 3}}}),
    "4 bits": (
        "AdamW",
        2,
        "fp32",
        {"thinwire": {"zero_bits_up": 4, "zero_bits_down": 4}},
    ),
}


@pytest.mark.parametrize("of", ["values", "model_parallel", "tensor_model_parallel"])
@pytest.mark.parametrize("name", ENGINES)
@by_ranks(4)
def test_what_ranks_of_a_model_hold_alike_counts_once(
    comm: Any, name: str, of: str
) -> None:
    kind, stage, precision, *more = ENGINES[name]
    model = Half(comm.rank % 2, "" if of == "values" else of)
    for parameter in model.parameters():
        if precision != "fp32" and stage != 1 and parameter is not model.wide:
            parameter.data = parameter.data.half()  # beside fp32
    engine = thinwire.initialize(
        model=model,
        mpu=grid_of(comm, only_tensor=of == "tensor_model_parallel"),
        config=config_of(kind, stage, precision, **(more[0] if more else {})),
    )[0]
    noise = 0 if name == "outer" else 0.5  # local steps know their own norm only
    for _ in range(5):
        engine.backward(engine(noise if comm.rank < 2 else -noise))
        engine.step()
        exact = engine.report.phase == "exact" and name != "outer"
        assert engine.report.grad_norm == pytest.approx(NORM, 1e-5 if exact else 0.02)
    assert engine.report.applied


@pytest.mark.parametrize("kind", ["OnebitAdam", "OnebitLamb", "ZeroOneAdam"])
@by_ranks(4)
def test_an_optimizer_with_a_handle_has_the_norm_of_the_model(
    comm: Any, kind: str
) -> None:
    model = Half(comm.rank % 2)
    optimizer = getattr(thinwire, kind)(
        model.named_parameters(), deepspeed=SimpleNamespace(mpu=grid_of(comm))
    )
    scaler = thinwire.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(0.5 if comm.rank < 2 else -0.5)
        broken = step == 1 and comm.rank == 3
        scaler.scale(loss * (float("inf") if broken else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert optimizer.report.applied == (step != 1)
    assert optimizer.report.grad_norm == pytest.approx(NORM, 1e-5)
    lean = {"deepspeed": SimpleNamespace(mpu=grid_of(comm))}
    with pytest.raises(thinwire.InvalidArgument, match="model-parallel group"):
        thinwire.LeanOnebitAdam(model.parameters(), **lean)


def refused_in_all_parts(comm: Any, call: Callable[[bool], Any], text: str) -> None:
    """Passes whether this rank has part 1, whose argument is at fault."""
    with pytest.raises(thinwire.InvalidArgument, match=text):
        call(comm.rank % 2 == 1)
    comm.barrier()


@by_ranks(4)
def test_what_one_part_refuses_is_refused_in_all_parts(
    comm: Any, tmp_path: Path
) -> None:
    def make(is_bad: bool) -> Any:
        config = config_of("none" if is_bad else "AdamW", 0, "fp32")
        return thinwire.initialize(
            model=Half(comm.rank % 2), mpu=grid_of(comm), config=config
        )[0]

    def make_optimizer(is_bad: bool) -> Any:
        model, mpu = Half(comm.rank % 2), grid_of(comm)
        handle = SimpleNamespace(mpu=mpu)
        rate = -1.0 if is_bad else 1e-3
        return thinwire.OnebitAdam(model.parameters(), lr=rate, deepspeed=handle)

    refused_in_all_parts(comm, make, "none")
    refused_in_all_parts(comm, make_optimizer, "lr")
    engine, optimizer = make(False), make_optimizer(False)
    group = {"params": [torch.nn.Parameter(torch.ones(1))]}
    wrong = {**group, "lr": -1.0}
    save, load = engine.save_checkpoint, engine.load_checkpoint
    add = optimizer.add_param_group
    state = {"a": object()}
    for call, text in (
        (lambda is_bad: save(tmp_path, "t", state if is_bad else {}), "client_state"),
        (lambda is_bad: save(tmp_path, f"{is_bad}"), "tag"),
        (lambda is_bad: load(None if is_bad else tmp_path), "load_dir"),
        (lambda is_bad: load(tmp_path, f"{is_bad}"), "tag"),
        (lambda is_bad: add(wrong if is_bad else group), "lr"),
    ):
        refused_in_all_parts(comm, call, text)
    assert not any(tmp_path.iterdir())
    assert load(tmp_path) == (None, None)


@by_ranks(4)
def test_one_directory_takes_all_parts(comm: Any, tmp_path: Path) -> None:
    def make(marked: str = "") -> Any:
        model = Half(comm.rank % 2, marked)
        config = config_of("AdamW", 1, "fp32")
        return thinwire.initialize(model=model, mpu=grid_of(comm), config=config)[0]

    engine = make()
    engine.backward(engine())
    engine.step()
    engine.save_checkpoint(tmp_path, tag="t")
    call = f"has: call engine.load_checkpoint('{tmp_path}', 't')"
    for path in (tmp_path, tmp_path / "t"):
        with pytest.raises(thinwire.InvalidArgument, match=re.escape(call)):
            thinwire.resume(path, engine)
    engine.save_16bit_model(tmp_path / "16", "model.bin")
    want = engine.module.part.detach().clone()
    other = make("model_parallel")
    path, _ = other.load_checkpoint(tmp_path)
    part = f"mp_rank_{comm.rank % 2:02d}"
    assert path is not None and Path(path).parent == tmp_path / "t" / part
    assert torch.equal(other.module.part, want)
    saved = torch.load(tmp_path / "16" / part / "model.bin", weights_only=True)
    assert torch.equal(saved["part"], want)
    comm.barrier()
    if comm.rank == 0:  # as versions before saved them, each part by itself
        os.rename(
            tmp_path / "t/mp_rank_00/step-0000000001", tmp_path / "t/step-0000000001"
        )
        os.rename(tmp_path / "t/mp_rank_00", tmp_path / "t/gone")
    comm.barrier()
    again, _ = make().load_checkpoint(tmp_path)
    assert again is not None
    assert (Path(again).parent == tmp_path / "t") == (comm.rank % 2 == 0)

# SPDX-License-Identifier: Apache-2.0
"""An Engine computes the same bits as the optimizer alone, in every way."""

from __future__ import annotations

import json
import runpy
import signal
from pathlib import Path
from typing import Any

import pytest
import thinwire
import torch
from engines import (
    BF16,
    DTYPES,
    FP16,
    Net,
    alone,
    by_optimizer,
    config_of,
    flat,
    loss_of,
    make,
    optimizer_of,
    same_bits,
    trained,
    zero,
)
from local_ranks import by_ranks
from thinwire.comm import run_local_ranks

OURS = {
    "AdamW": (thinwire.AdamW, {"weight_decay": 0.1}),
    "Lamb": (thinwire.Lamb, {}),
    "OneBitAdam": (thinwire.OnebitAdam, {"freeze_step": 3}),
    "OneBitLamb": (thinwire.OnebitLamb, {"freeze_step": 3}),
    "ZeroOneAdam": (
        thinwire.ZeroOneAdam,
        {"var_freeze_step": 3, "local_step_scaler": 2},
    ),
}


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("world", [1, 2, 3])
@by_ranks("world")
def test_an_engine_equals_the_optimizer_alone(comm: Any, name: str, world: int) -> None:
    kind, options = OURS[name]
    section = optimizer_of(name, **options)
    options = options | {"lr": 0.01, "max_grad_norm": 1.0, "process_group": comm}
    want = by_optimizer(comm, lambda m: kind(m.parameters(), **options), 6)
    engine = trained(comm, 6, **section)
    assert same_bits(flat(engine.module), want)
    engine.destroy()


@by_ranks(2)
def test_accumulation_in_one_window_equals_one_large_batch(comm: Any) -> None:
    engine = make(comm, config_of(gradient_accumulation_steps=2))
    boundaries = []
    for number in range(4):
        boundaries.append(engine.is_gradient_accumulation_boundary())
        loss = loss_of(engine, comm.rank, number)
        scaled = engine.backward(loss)
        assert torch.equal(scaled, loss.detach() / 2)
        engine.step()
        assert engine.was_step_applied() == (number % 2 == 1)
    assert boundaries == [False, False, False, False]
    assert (engine.micro_steps, engine.global_steps) == (4, 2)
    assert engine.global_samples == 2 * engine.train_batch_size() == 2 * 2 * 4 * 2
    assert engine.get_batch_info() == (16, 4, 2)


@by_ranks(2)
def test_boundaries_by_hand(comm: Any) -> None:
    by_hand = make(comm, config_of())
    managed = make(comm, config_of(gradient_accumulation_steps=3))
    for step in range(2):
        for micro in range(3):
            number = step * 3 + micro
            managed.backward(loss_of(managed, comm.rank, number))
            managed.step()
            if micro < 2:
                with by_hand.no_sync():
                    loss = loss_of(by_hand, comm.rank, number) / 3
                    by_hand.backward(loss)
                    by_hand.step()
                    assert not by_hand.was_step_applied()
            else:
                by_hand.set_gradient_accumulation_boundary(True)
                by_hand.backward(loss_of(by_hand, comm.rank, number) / 3)
                by_hand.step()
                by_hand.set_gradient_accumulation_boundary(None)
    assert by_hand.global_steps == managed.global_steps == 2
    assert torch.allclose(flat(by_hand.module), flat(managed.module), atol=1e-6)


@by_ranks(2)
def test_losses_of_16_bits_are_widened(comm: Any) -> None:
    engine = make(comm, config_of(**FP16))
    narrow = loss_of(engine, comm.rank, 0).half()
    engine.backward(narrow)
    engine.step()
    # The seed of a loss of 16 bits is the loss scale, which fits here.
    assert engine.was_step_applied()
    large = make(comm, config_of(fp16={"enabled": True, "initial_scale_power": 20}))
    before = flat(large.module)
    large.backward(loss_of(large, comm.rank, 0).half())
    large.step()
    assert not large.was_step_applied()
    assert large.skipped_steps == large.global_steps == 1
    assert large.optimizer.overflow
    assert large.loss_scale() == 2.0**20  # hysteresis 2
    assert same_bits(before, flat(large.module))


@by_ranks(2)
def test_overflow_on_one_rank_skips_on_all(comm: Any) -> None:
    scheduler = lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: 1 / (n + 1))
    engine = make(comm, config_of(**FP16), lr_scheduler=scheduler)
    for step in range(4):
        loss = loss_of(engine, comm.rank, step)
        overflows = step == 1 and comm.rank == 1
        engine.backward(loss * float("inf") if overflows else loss)
        engine.step()
        assert engine.was_step_applied() == (step != 1)
    assert engine.get_lr() == [0.01 / 4]


def test_an_interrupt_waits_for_the_end_of_a_step() -> None:
    class Interrupts(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            signal.raise_signal(signal.SIGINT)
            return super().step(closure)

    net = Net()
    optimizer = Interrupts(net.parameters(), lr=0.1)
    config = {"train_micro_batch_size_per_gpu": 4}
    engine = alone(config, model=net, optimizer=optimizer)
    for step in range(2):
        engine.backward(loss_of(engine, 0, step))
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        assert engine.global_steps == step + 1 and engine.was_step_applied()


@by_ranks(2)
def test_stage_2_keeps_no_gradients(comm: Any) -> None:
    engine = make(comm, config_of(**zero(2)))
    engine.backward(loss_of(engine, comm.rank, 0))
    assert all(p.grad is None for p in engine.parameters())
    engine.step()
    assert engine.was_step_applied()


@by_ranks(2)
def test_a_failing_backward_reaches_all_ranks(comm: Any) -> None:
    # Gradients of the last layers have been sent when the first one's fails.
    settings = {"thinwire": {"bucket_elements": 64}}
    engine = make(comm, config_of(**settings))
    if comm.rank == 1:

        def fail(gradient: torch.Tensor) -> None:
            raise ValueError("no memory left")

        engine.module.first.weight.register_hook(fail)
    with pytest.raises(thinwire.CommFailure, match="no memory left") as caught:
        engine.backward(loss_of(engine, comm.rank, 0))
        engine.step()
    if comm.rank == 1:
        assert isinstance(caught.value.__cause__, ValueError)
    else:
        assert "rank 1 gave up" in str(caught.value)


GOLDEN = Path(__file__).resolve().parents[3] / "tests" / "golden" / "recordings.py"


class Recording:
    """One case: its settings, and arrays by file name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta: dict[str, Any] = json.loads((folder / "meta.json").read_text())

    def array(self, name: str) -> torch.Tensor:
        """float32, in the shape that was recorded."""
        about = self.meta["files"][name]
        data = bytearray((self.folder / name).read_bytes())
        return torch.frombuffer(data, dtype=torch.float32).view(about["shape"])

    def cut(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Views of a flat array, one per tensor."""
        return [
            values.narrow(0, tensor["off"], tensor["n"]).view(tensor["shape"])
            for tensor in self.meta["tensors"]
        ]

    def groups(self, parameters: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
        """Returns the groups that an engine takes, each with its own settings."""
        groups: list[dict[str, Any]] = [
            {"params": [], **{key: group[key] for key in group if key != "shapes"}}
            for group in self.meta["groups"]
        ]
        for parameter, tensor in zip(parameters, self.meta["tensors"], strict=True):
            groups[tensor["group"]]["params"].append(parameter)
        return groups


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    runpy.run_path(str(GOLDEN))["unpack"](folder)
    return folder


class Linear(torch.nn.Module):
    """Its gradients are what it is called with."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__()
        self.tensors = torch.nn.ParameterList(parameters)

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        terms = [
            (p.float() * g).sum() for p, g in zip(self.tensors, gradients, strict=True)
        ]
        return torch.stack(terms).sum()


def zero_config(meta: dict[str, Any]) -> dict[str, Any]:
    opts = dict(meta["opts"])
    if meta["optimizer"] == "Adam":
        opts["adam_w_mode"] = False
    return {
        "optimizer": {"type": meta["optimizer"], "params": opts},
        "gradient_accumulation_steps": meta["gas"],
        "gradient_clipping": meta["clip_grad"],
        "communication_data_type": meta["comm"],
        "data_types": {"grad_accum_dtype": meta["accum"]},
        "zero_optimization": {
            "stage": meta["stage"],
            "reduce_bucket_size": meta["reduce_bucket_size"],
            "reduce_scatter": meta["reduce_scatter"],
            "round_robin_gradients": meta["round_robin"],
        },
        **(BF16 if meta["dtype"] == "bf16" else {}),
    }


def low_bit_config(meta: dict[str, Any], kind: str) -> dict[str, Any]:
    return {
        "optimizer": {"type": kind, "params": meta["opts"]},
        "gradient_clipping": meta["fp16"]["clip_grad"],
    }


def scaler(recorded: dict[str, Any]) -> dict[str, Any]:
    settings = {
        "initial_scale_power": int(recorded["init_scale"]).bit_length() - 1,
        "loss_scale_window": int(recorded["scale_window"]),
        "min_loss_scale": recorded["min_scale"],
    }
    if "delayed_shift" in recorded:
        settings["hysteresis"] = recorded["delayed_shift"]
        settings["consecutive_hysteresis"] = recorded["consecutive_hysteresis"]
    return {"fp16": {"enabled": True, **settings}}


LOW_BIT = {"adam_w4_fp16_fused": "OneBitAdam", "lamb_w4_fp16_unfused": "OneBitLamb"}


@pytest.mark.parametrize(
    "name",
    [
        "zero1_w2_fp32",
        "zero1_w2_bf16_accum16",
        "zero2_w2_fp16_adam",
        "zero2_w4_gas2_clip",
        *LOW_BIT,
    ],
)
def test_an_engine_has_the_bits_of_deepspeed(name: str, recordings: Path) -> None:
    case = Recording(recordings / name)
    meta = case.meta
    is_zero = name not in LOW_BIT
    config = zero_config(meta) if is_zero else low_bit_config(meta, LOW_BIT[name])
    config |= {
        "train_micro_batch_size_per_gpu": 1,
        "thinwire": {"semantics": "deepspeed"},
        **(scaler(meta["fp16"]) if meta["fp16"] else {}),
    }
    dtype = DTYPES[meta["dtype"] if is_zero else "fp16"]

    def run(comm: Any) -> None:
        # DeepSpeed's masters are made of rounded parameters.
        start = case.array("init.bin").to(dtype).float()
        parameters = [torch.nn.Parameter(part.clone()) for part in case.cut(start)]
        engine, *_ = thinwire.initialize(
            model=Linear(parameters),
            model_parameters=case.groups(parameters),
            config=config,
            process_group=comm,
        )
        wanted = case.array("params.bin" if is_zero else "params16.bin")
        wanted = wanted[comm.rank if len(wanted) > 1 else 0]
        given = case.array("grads.bin")[comm.rank]
        for step in range(meta["steps"]):
            for gradients in given[step] if is_zero else given[step : step + 1]:
                gradients = gradients.clone()
                if [step, comm.rank] in meta["inf_at"]:
                    gradients[0] = float("inf")
                engine.backward(engine(case.cut(gradients)))
                engine.step()
            log = meta["step_log"][step]
            assert engine.was_step_applied() != log["overflow"]
            if is_zero:
                assert engine.loss_scale() == log["loss_scale_after"]
            assert same_bits(flat(engine), wanted[step]), f"step {step}"
        engine.destroy()

    run_local_ranks(meta["world"], run)

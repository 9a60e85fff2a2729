# SPDX-License-Identifier: Apache-2.0
"""fp32 parameters, such as those of norm layers, in a model of 16 bits."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import optim_cases as cases
import pytest
import thinwire
import torch
from engines import BF16, ONEBIT, config_of, make, zero
from local_ranks import by_ranks
from thinwire.comm import seeded
from thinwire.errors import InvalidArgument

pytestmark = pytest.mark.quick

WIDE = ("norm.weight", "norm.bias", "scale")
FOUR_BITS = {
    "zero_optimization": {"stage": 2},
    "thinwire": {"zero_bits_up": 4, "zero_bits_down": 4},
}
FP16 = {"fp16": {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}}


class Net(torch.nn.Module):
    """Its norm and its scale are fp32."""

    def __init__(self, dtype: torch.dtype, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed):
            self.first = torch.nn.Linear(7, 33, dtype=dtype)
            self.norm = torch.nn.LayerNorm(33)
            self.register_buffer("shift", torch.full((33,), 1 / 3))
            self.last = torch.nn.Linear(33, 1, dtype=dtype)
            self.scale = torch.nn.Parameter(torch.tensor([1.3]))
            self.frozen = torch.nn.Parameter(torch.tensor([0.1]), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x.to(self.first.weight.dtype)).float()
        h = torch.tanh(self.norm(h) + self.shift)
        y = self.last(h.to(self.last.weight.dtype))
        return y.float() * self.scale + self.frozen


def loss_of(model: Any, rank: int, step: int) -> torch.Tensor:
    x, y = cases.batch(rank, step)
    return torch.nn.functional.mse_loss(model(x), y)


def train(model: Net, optimizers: list[Any], rank: int, steps: range) -> None:
    for step in steps:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        for optimizer in optimizers:
            optimizer.step()


def train_engine(engine: Any, steps: range) -> None:
    for step in steps:
        engine.backward(loss_of(engine, engine.global_rank, step))
        engine.step()


def require_dtypes(model: torch.nn.Module, dtype: torch.dtype) -> None:
    for name, p in model.named_parameters():
        is_wide = name in WIDE or name == "frozen"
        assert p.dtype == (torch.float32 if is_wide else dtype), name


def engine_of(comm: Any, dtype: torch.dtype, **changes: Any) -> Any:
    precision = BF16 if dtype == torch.bfloat16 else FP16
    config = config_of(**(precision | {"gradient_clipping": 0.0} | changes))
    return make(comm, config, model=Net(dtype, seed=comm.rank))


EXACT = {"AdamW": "AdamW", "Lamb": "Lamb", "OnebitAdam": "AdamW", "OnebitLamb": "Lamb"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", list(EXACT))
@pytest.mark.parametrize("world", [1, 2, 3])
@by_ranks("world")
def test_each_part_is_trained_as_in_a_separate_optimizer(
    comm: Any, world: int, kind: str, dtype: torch.dtype
) -> None:
    both, apart = Net(dtype), Net(dtype)
    one = cases.make(kind, both.named_parameters(), comm)
    named = list(apart.named_parameters())
    narrow = cases.make(kind, [p for n, p in named if n not in WIDE], comm)
    wide = cases.make(EXACT[kind], [p for n, p in named if n in WIDE], comm)
    train(both, [one], comm.rank, range(9))
    train(apart, [narrow, wide], comm.rank, range(9))
    assert cases.bits(both) == cases.bits(apart)
    require_dtypes(both, dtype)


@by_ranks(2)
def test_what_is_written_into_either_part_counts(comm: Any) -> None:
    model = Net(torch.bfloat16)
    optimizer = cases.make("AdamW", model.parameters(), comm, lr=0.0)
    train(model, [optimizer], comm.rank, range(1))
    with torch.no_grad():
        model.norm.weight.fill_(3.0)
        model.first.bias.fill_(2.0)
    train(model, [optimizer], comm.rank, range(1, 2))
    assert model.norm.weight.unique().tolist() == [3.0]
    assert model.first.bias.unique().tolist() == [2.0]


WAYS: dict[str, dict[str, Any]] = {
    "stage 0": {},
    "stage 1": zero(1),
    "stage 2": zero(2),
    "4 bits": FOUR_BITS,
    "1-bit Adam": ONEBIT,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("world", [1, 2, 3])
@by_ranks("world")
def test_engines_train_as_the_plain_optimizer(
    comm: Any, world: int, dtype: torch.dtype
) -> None:
    model = Net(dtype)
    optimizer = thinwire.AdamW(
        model.parameters(), lr=0.01, weight_decay=0.1, process_group=comm
    )
    train(model, [optimizer], comm.rank, range(6))
    want = cases.bits(model)
    for name, changes in WAYS.items():
        engine = engine_of(comm, dtype, **changes)
        train_engine(engine, range(6))
        require_dtypes(engine.module, dtype)
        assert engine.module.shift.dtype == torch.float32
        if changes not in (FOUR_BITS, ONEBIT) and dtype == torch.bfloat16:
            assert cases.bits(engine.module) == want, name
        for wide in WIDE:
            full, own = (
                engine.full_parameter(wide),
                engine.module.get_parameter(wide),
            )
            assert torch.equal(full, own), name
        engine.destroy()


@pytest.mark.parametrize(
    "kind", [k for k in cases.KINDS if not k.startswith(("Lean", "Outer"))]
)
@pytest.mark.parametrize("world", [1, 2])
@by_ranks("world")
def test_plain_optimizers_are_saved_and_loaded(
    comm: Any, world: int, kind: str, tmp_path: Path
) -> None:
    model = Net(torch.float16)
    optimizer = cases.make(kind, model.named_parameters(), comm)
    train(model, [optimizer], comm.rank, range(7))
    thinwire.save(tmp_path, optimizer)
    state, weights = optimizer.state_dict(), copy.deepcopy(model.state_dict())
    train(model, [optimizer], comm.rank, range(7, 10))
    for way in ("file", "dict"):
        other = Net(torch.float16, seed=5)
        resumed = cases.make(kind, other.named_parameters(), comm)
        if way == "file":
            thinwire.load(tmp_path, resumed)
        else:
            other.load_state_dict(weights)
            resumed.load_state_dict(state)
        train(other, [resumed], comm.rank, range(7, 10))
        assert cases.bits(other) == cases.bits(model), way


def over(base: torch.dtype, adapters: torch.dtype) -> torch.nn.Module:
    """Returns a model that trains its last layer. Other layers are frozen."""
    model = Net(torch.float32).requires_grad_(False)
    model.last.to(adapters).requires_grad_(True)
    weight = model.first.weight.detach().to(base)
    model.first.weight = torch.nn.Parameter(weight, requires_grad=False)
    return model


SEVERAL: dict[str, Any] = {
    "frozen fp32": lambda: Net(torch.bfloat16),
    "16 bits over fp32": lambda: over(torch.float32, torch.bfloat16),
    "fp32 over 16 bits": lambda: over(torch.bfloat16, torch.float32),
    "fp32 over bytes": lambda: over(torch.uint8, torch.float32),
}
TRAINERS: dict[str, dict[str, Any]] = {
    "ours": {},
    "deepspeed": zero(1) | {"thinwire": {"semantics": "deepspeed"}},
    "client": {"optimizer": lambda given: torch.optim.SGD(given, 0.1)},
}


@pytest.mark.parametrize("trainer", list(TRAINERS))
@pytest.mark.parametrize("kind", list(SEVERAL))
@by_ranks(2)
def test_what_is_not_trained_keeps_its_dtype_in_a_model_of_several(
    comm: Any, kind: str, trainer: str
) -> None:
    model = SEVERAL[kind]()
    before = copy.deepcopy(model.state_dict())
    changes = copy.copy(TRAINERS[trainer])
    client = changes.pop("optimizer", None)
    make(comm, config_of(**BF16, **changes), model=model, optimizer=client)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    for name, value in model.state_dict().items():
        is_same = value.dtype == before[name].dtype and torch.equal(value, before[name])
        assert name in trained or is_same, name


@by_ranks(2)
def test_a_model_of_fp32_alone_is_converted_except_its_tables(
    comm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = Net(torch.float32)
    model.register_buffer("table", torch.rand(3), persistent=False)
    model.register_buffer("count", torch.tensor(3))
    with caplog.at_level("INFO", "thinwire"):
        make(comm, config_of(**BF16), model=model)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert (model.shift.dtype, model.table.dtype, model.count.dtype) == (
        torch.bfloat16,
        torch.float32,
        torch.int64,
    )
    said = [text for text in caplog.messages if "all parameters were float32" in text]
    assert len(said) == 1 and said[0].endswith(": 'frozen', 'shift'"), said


@by_ranks(2)
def test_deepspeeds_semantics_convert_all_that_is_trained(comm: Any) -> None:
    semantics = {"thinwire": {"semantics": "deepspeed"}}
    whole = engine_of(comm, torch.float16, **semantics, **zero(2)).module
    trained = {p.dtype for p in whole.parameters() if p.requires_grad}
    assert trained == {torch.float16}


def test_what_is_refused() -> None:
    model = Net(torch.bfloat16)
    with pytest.raises(InvalidArgument, match="two dtypes"):
        thinwire.LeanOnebitAdam(model.parameters(), freeze_step=2)
    half = [torch.nn.Parameter(torch.ones(33, dtype=torch.float16))]
    with pytest.raises(InvalidArgument, match="float32 or bfloat16 with lean_onebit"):
        thinwire.LeanOnebitAdam(half)
    model.last.half()
    with pytest.raises(InvalidArgument, match="or float32 beside one of 16 bits"):
        thinwire.AdamW(model.parameters())
    model = Net(torch.bfloat16)
    masks = [torch.ones_like(p) for p in model.parameters()]
    group = {"params": list(model.parameters()), "exp_avg_mask": masks}
    thinwire.OnebitAdam([group], freeze_step=2).close()
    names = [name for name, _ in model.named_parameters()]
    masks[names.index("norm.weight")][0] = 0
    with pytest.raises(InvalidArgument, match="float32 in a model of 16 bits"):
        thinwire.OnebitAdam([group], freeze_step=2)


@pytest.mark.parametrize("scale", [0.0, -4.0, float("nan"), float("inf"), 1e300])
def test_a_scale_that_no_step_could_use_is_refused(scale: float) -> None:
    with pytest.raises(thinwire.InvalidArgument, match="init_scale must be in .*, got"):
        thinwire.GradScaler("cpu", init_scale=scale)
    assert thinwire.GradScaler("cpu", init_scale=2.0**127).get_scale() == 2.0**127

# SPDX-License-Identifier: Apache-2.0
"""initialize(optimizer=) with optimizers of torch that make their own steps."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import thinwire
import torch
from engines import (
    BF16,
    DTYPES,
    PRECISIONS,
    Net,
    batch,
    config_of,
    flat,
    loss_of,
    make,
    same_bits,
    train,
    zero,
)
from local_ranks import by_ranks
from thinwire.comm import run_local_ranks

SETTINGS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "NAdam": {},
    "Rprop": {},
    "Adafactor": {},
    "Adam": {"amsgrad": True},
    "AdamW": {"maximize": True},
}
PLAIN = config_of(gradient_clipping=0.0)


def of_torch(kind: str, parameters: Any, lr: float = 0.01) -> torch.optim.Optimizer:
    made: torch.optim.Optimizer = getattr(torch.optim, kind)(
        parameters, lr=lr, **SETTINGS[kind]
    )
    return made


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def average(model: torch.nn.Module, comm: Any) -> None:
    """Gradients as the engine averages them: added up in the order of ranks, then times
    the fp32 number 1 / ranks."""
    for p in trained(model):
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        summed = grad.detach().reshape(-1).clone()
        comm.all_reduce(summed)
        p.grad = (summed * torch.tensor(1 / comm.size)).view(p.shape)


def train_one(engine: Any, step: int, dtype: torch.dtype = torch.float32) -> None:
    engine.backward(loss_of(engine, engine.global_rank, step))
    engine.step()


def states_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The values that each parameter's state has now."""
    return [
        {k: torch.as_tensor(v).flatten().tolist() for k, v in entry.items()}
        for entry in optimizer.state.values()
    ]


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("kind", SETTINGS)
@by_ranks("world")
def test_steps_have_the_bits_of_torch(comm: Any, kind: str, world: int) -> None:
    model = Net(seed=2)
    plain = Net(seed=2)
    client = of_torch(kind, model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(client, 0.9)
    engine, optimizer, _, found = thinwire.initialize(
        model=model,
        optimizer=client,
        lr_scheduler=schedule,
        config=PLAIN,
        process_group=comm,
    )
    assert found is schedule and optimizer.param_groups[0] is client.param_groups[0]
    assert engine.optimizer_name() == kind
    theirs = of_torch(kind, plain.parameters())
    rates = torch.optim.lr_scheduler.ExponentialLR(theirs, 0.9)
    for step in range(5):
        theirs.zero_grad()
        loss_of(plain, comm.rank, step).backward()
        average(plain, comm)
        theirs.step()
        rates.step()
        train_one(engine, step)
        assert same_bits(flat(model), flat(plain)), step
        assert engine.get_lr() == rates.get_last_lr()
        elements = sum(p.numel() for p in trained(model))
        if world == 2:
            assert engine.report.bytes_sent == 4 * elements
    assert states_of(client) == states_of(theirs)
    assert states_of(optimizer) == states_of(theirs)
    weight, key = model.first.weight, next(iter(client.state[model.first.weight]))
    assert torch.equal(engine.full_state(weight, key), client.state[weight][key])
    with pytest.raises(thinwire.InvalidArgument, match="of 'first.weight', got"):
        engine.full_state("first.weight", "none")


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@by_ranks(1)
def test_16_bits_have_masters_in_fp32(comm: Any, precision: str) -> None:
    dtype = DTYPES[precision]
    model, plain = Net(seed=3), Net(seed=3)
    masters = [p.detach().clone() for p in trained(plain)]
    plain.to(dtype)
    theirs = of_torch("SGD", masters)
    client = of_torch("SGD", model.parameters())
    engine = make(comm, PLAIN | PRECISIONS[precision], model=model, optimizer=client)
    for step in range(4):
        scale = engine.loss_scale()
        plain.zero_grad()
        (loss_of(plain, 0, step) * scale).backward()
        for master, p in zip(masters, trained(plain), strict=True):
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            master.grad = grad.float() / scale
        theirs.step()
        for master, p in zip(masters, trained(plain), strict=True):
            p.data.copy_(master)
        train_one(engine, step, dtype)
        assert engine.was_step_applied()
        for master, p in zip(masters, trained(model), strict=True):
            assert p.dtype == dtype
            assert same_bits(engine.full_parameter(p).view(-1), master.view(-1))
        assert same_bits(flat(model), flat(plain))
    assert all(
        entry["momentum_buffer"].dtype == torch.float32
        for entry in client.state.values()
    )


def made_for_resuming(
    comm: Any, kind: str, config: Any, turns: bool = False
) -> tuple[Any, torch.optim.Optimizer]:
    model = Net(seed=comm.rank)
    groups: list[dict[str, Any]] = [
        {"params": [model.first.weight, model.frozen], "lr": 0.02},
        {"params": [p for p in trained(model) if p is not model.first.weight]},
    ]
    if turns:
        groups[1]["params"].reverse()
    client = of_torch(kind, groups)
    cycles = "momentum" in client.defaults or "betas" in client.defaults
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        client, max_lr=0.05, total_steps=20, cycle_momentum=cycles
    )
    engine = make(comm, config, model=model, optimizer=client, lr_scheduler=schedule)
    return engine, client


@pytest.mark.parametrize("kind", ["SGD", "Adagrad", "NAdam", "Adam"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_checkpoints_go_on_with_the_same_bits_and_on_other_ranks(
    kind: str, precision: str, tmp_path: Path
) -> None:
    config = PLAIN | PRECISIONS[precision]
    want: dict[str, Any] = {}

    def whole(comm: Any) -> None:
        engine, client = made_for_resuming(comm, kind, config)
        train(engine, range(3))
        engine.save_checkpoint(tmp_path, tag="t")
        if comm.rank == 0:
            want["params"], want["states"] = flat(engine.module), states_of(client)
            want["groups"] = [
                {k: v for k, v in g.items() if k != "params"}
                for g in copy.deepcopy(client.param_groups)
            ]
        train(engine, range(3, 6))
        if comm.rank == 0:
            want["end"] = flat(engine.module)

    def later(comm: Any) -> None:
        engine, client = made_for_resuming(comm, kind, config)
        train(engine, range(7, 8))  # leaves no trace
        engine.load_checkpoint(tmp_path, tag="t")
        assert same_bits(flat(engine.module), want["params"])
        assert states_of(client) == want["states"]
        for group, saved in zip(client.param_groups, want["groups"], strict=True):
            assert {k: v for k, v in group.items() if k != "params"} == saved
        assert client.param_groups[0] is engine.optimizer.param_groups[0]
        train(engine, range(3, 6))
        if comm.size == 2:
            assert same_bits(flat(engine.module), want["end"])

    run_local_ranks(2, whole)
    for world in (2, 1, 3):
        run_local_ranks(world, later)
    (manifest,) = tmp_path.glob("t/*/manifest.json")
    assert json.loads(manifest.read_text())["optimizer"].endswith(f".{kind}")


@by_ranks(2)
def test_states_of_other_optimizers_are_refused(comm: Any, tmp_path: Path) -> None:
    engine, _ = made_for_resuming(comm, "SGD", PLAIN)
    train(engine, range(2))
    engine.save_checkpoint(tmp_path, tag="t")
    for kind, turns, text in (
        ("NAdam", False, "is torch.optim.sgd.SGD, this optimizer's .*NAdam"),
        ("SGD", True, "of other parameters or groups, or of another order"),
    ):
        other, client = made_for_resuming(comm, kind, PLAIN, turns)
        before = flat(other.module)
        with pytest.raises(thinwire.CorruptCheckpoint, match=text):
            other.load_checkpoint(tmp_path, tag="t")
        assert same_bits(flat(other.module), before) and not client.state


@by_ranks(2)
def test_state_dict_goes_on(comm: Any) -> None:
    engine, _ = made_for_resuming(comm, "SGD", PLAIN)
    train(engine, range(2))
    saved = copy.deepcopy(engine.optimizer.state_dict())
    weights = copy.deepcopy(engine.module.state_dict())
    schedule = copy.deepcopy(engine.lr_scheduler.state_dict())
    train(engine, range(2, 4))
    other, _ = made_for_resuming(comm, "SGD", PLAIN)
    other.load_module_state_dict(weights)
    other.optimizer.load_state_dict(saved)
    other.lr_scheduler.load_state_dict(schedule)
    train(other, range(2, 4))
    assert same_bits(flat(other.module), flat(engine.module))


class Stubborn(torch.optim.SGD):
    """Raises in its third step on rank 1."""

    rank = 0
    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        if self.rank == 1 and self.steps == 3:
            raise ZeroDivisionError("stubborn")
        return super().step(closure)


@by_ranks(2)
def test_what_step_raises_comes_out_and_the_other_ranks_hear_of_it(comm: Any) -> None:
    model = Net()
    client = Stubborn(model.parameters(), lr=0.1)
    client.rank = comm.rank
    engine = make(comm, PLAIN, model=model, optimizer=client)
    train(engine, range(2))
    kind = ZeroDivisionError if comm.rank == 1 else thinwire.CommFailure
    with pytest.raises(kind, match="stubborn"):
        train(engine, range(2, 4))


@by_ranks(2)
def test_ranks_with_other_settings_are_refused(comm: Any) -> None:
    model = Net()
    client = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.1 * comm.rank)
    with pytest.raises(thinwire.InvalidArgument, match="momentum"):
        make(comm, PLAIN, model=model, optimizer=client)


class Swapping(torch.optim.SGD):
    """Has other weights for evaluation, as schedule-free optimizers do."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


@by_ranks(1)
def test_what_does_not_go_with_it_is_refused_by_name(comm: Any) -> None:
    net = Net()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    grouped = torch.optim.SGD(
        [{"params": list(net.parameters()), "expert_group": object()}], lr=0.1
    )
    semantics = {"thinwire": {"semantics": "deepspeed"}}
    amsgrad = torch.optim.Adam(net.parameters(), amsgrad=True)
    differentiable = torch.optim.NAdam(net.parameters(), differentiable=True)
    before = {name: p.data_ptr() for name, p in net.named_parameters()}
    for client, changes, text in (
        (sgd, zero(1), "SGD makes its own steps, so zero_optimization.stage must be 0"),
        (sgd, zero(2), "stage must be 0, got 2; give torch.optim.Adam or AdamW"),
        (sgd, semantics, "semantics must be corrected, got deepspeed"),
        (grouped, {}, "expert_group"),
        (torch.optim.LBFGS(net.parameters()), {}, "LBFGS needs a closure"),
        (torch.optim.SparseAdam(net.parameters()), {}, "sparse gradients"),
        (amsgrad, zero(1), "Adam makes its own steps.*unless they have amsgrad"),
        (differentiable, {}, "'differentiable'"),
        (
            Swapping(net.parameters()),
            BF16,
            "Swapping has train.. and eval.*got bfloat16",
        ),
    ):
        with pytest.raises(thinwire.InvalidArgument, match=text):
            make(comm, PLAIN | changes, model=net, optimizer=client)
        assert before == {n: p.data_ptr() for n, p in net.named_parameters()}, text


@by_ranks(1)
def test_an_optimizer_that_has_made_steps_goes_on(comm: Any) -> None:
    model = Net(seed=2)
    client = of_torch("SGD", model.parameters())
    x, y = batch(0, 0)
    torch.nn.functional.mse_loss(model(x), y).backward()
    client.step()
    plain = copy.deepcopy(model)
    theirs = of_torch("SGD", plain.parameters())
    theirs.load_state_dict(copy.deepcopy(client.state_dict()))
    engine = make(comm, PLAIN, model=model, optimizer=client)
    theirs.zero_grad()
    loss_of(plain, 0, 1).backward()
    theirs.step()
    train_one(engine, 1)
    assert same_bits(flat(model), flat(plain))

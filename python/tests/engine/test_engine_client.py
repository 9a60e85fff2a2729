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


def of_torch(kind: str, parameters: Any) -> torch.optim.Optimizer:
    made: torch.optim.Optimizer = getattr(torch.optim, kind)(
        parameters, lr=0.01, **SETTINGS[kind]
    )
    return made


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def states_of(
    optimizer: torch.optim.Optimizer, parameters: Any = None
) -> list[dict[str, Any]]:
    """The values that each parameter's state has now, of all that have one by default."""
    state = optimizer.state
    return [
        {k: torch.as_tensor(v).flatten().tolist() for k, v in state[p].items()}
        for p in (state if parameters is None else parameters)
    ]


class ByTorch:
    """A model that torch alone trains, on averages formed as the engine forms them: added up
    in the order of ranks, then times the fp32 number 1 / ranks. Beside 16 bits it steps on
    masters in fp32."""

    def __init__(self, kind: str, comm: Any, dtype: torch.dtype, state: Any) -> None:
        self.model, self.comm = Net(seed=2), comm
        self.model.load_state_dict(state["model"])
        self.masters = trained(self.model)
        if dtype != torch.float32:
            self.masters = [
                torch.nn.Parameter(p.detach().clone()) for p in self.masters
            ]
        self.model.to(dtype)
        self.optimizer = of_torch(kind, self.masters)
        self.optimizer.state.update(
            zip(self.masters, copy.deepcopy(state["entries"]), strict=False)
        )
        self.rates = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def step(self, number: int, scale: float) -> None:
        self.model.zero_grad()
        (loss_of(self.model, self.comm.rank, number) * scale).backward()
        pairs = list(zip(self.masters, trained(self.model), strict=True))
        for master, p in pairs:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            summed = grad.detach().float().reshape(-1) / scale
            self.comm.all_reduce(summed)
            master.grad = (summed * torch.tensor(1 / self.comm.size)).view(p.shape)
        self.optimizer.step()
        self.rates.step()
        for master, p in pairs:
            p.data.copy_(master)


# Optimizer, precision, ranks, and steps that the optimizer has made before.
CASES = [
    *((kind, "fp32", world, 0) for kind in SETTINGS for world in (1, 2, 3)),
    ("SGD", "fp16", 1, 0),
    ("SGD", "bf16", 1, 0),
    ("SGD", "fp32", 1, 1),
]


@pytest.mark.parametrize(("kind", "precision", "world", "before"), CASES)
@by_ranks("world")
def test_steps_have_the_bits_of_torch(
    comm: Any, kind: str, precision: str, world: int, before: int
) -> None:
    model = Net(seed=2)
    client = of_torch(kind, model.parameters())
    for step in range(before):
        loss_of(model, comm.rank, step).backward()
        client.step()
    dtype = DTYPES[precision]
    entries = [client.state[p] for p in trained(model)] if before else []
    state = copy.deepcopy({"model": model.state_dict(), "entries": entries})
    theirs = ByTorch(kind, comm, dtype, state)
    schedule = torch.optim.lr_scheduler.ExponentialLR(client, 0.9)
    engine, optimizer, _, found = thinwire.initialize(
        model=model,
        optimizer=client,
        lr_scheduler=schedule,
        config=PLAIN | PRECISIONS[precision],
        process_group=comm,
    )
    assert found is schedule and optimizer.param_groups[0] is client.param_groups[0]
    assert engine.optimizer_name() == kind
    for step in range(before, 5):
        theirs.step(step, engine.loss_scale())
        engine.backward(loss_of(engine, comm.rank, step))
        engine.step()
        assert engine.was_step_applied()
        assert same_bits(flat(model), flat(theirs.model)), step
        for p, master in zip(trained(model), theirs.masters, strict=True):
            assert p.dtype == dtype
            assert same_bits(engine.full_parameter(p).view(-1), master.view(-1))
        assert engine.get_lr() == theirs.rates.get_last_lr()
        if world == 2:
            assert engine.report.bytes_sent == 4 * sum(
                p.numel() for p in trained(model)
            )
    expected = states_of(theirs.optimizer, theirs.masters)
    for own in (client, optimizer):
        assert states_of(own, trained(model)) == expected
    weight, key = model.first.weight, next(iter(client.state[model.first.weight]))
    whole = engine.full_state(weight, key)
    assert whole.dtype == torch.float32
    assert torch.equal(whole, client.state[weight][key])
    with pytest.raises(thinwire.InvalidArgument, match="of 'first.weight', got"):
        engine.full_state("first.weight", "none")


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


def what_there_is(engine: Any, client: torch.optim.Optimizer) -> list[Any]:
    """Parameters, states and groups."""
    groups = [
        {k: v for k, v in group.items() if k != "params"}
        for group in client.param_groups
    ]
    values = flat(engine.module).view(torch.int32).tolist()
    return copy.deepcopy([values, states_of(client), groups])


@pytest.mark.parametrize("kind", ["SGD", "Adagrad", "NAdam", "Adam"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_checkpoints_continue_with_the_same_bits_and_on_other_ranks(
    kind: str, precision: str, tmp_path: Path
) -> None:
    config = PLAIN | PRECISIONS[precision]
    want: list[Any] = []
    states: list[Any] = []

    def whole(comm: Any) -> None:
        engine, client = made_for_resuming(comm, kind, config)
        train(engine, range(3))
        engine.save_checkpoint(tmp_path, tag="t")
        found = [what_there_is(engine, client)]
        parts = (engine.module, engine.optimizer, engine.lr_scheduler)
        own = copy.deepcopy([part.state_dict() for part in parts])
        train(engine, range(3, 6))
        found.append(what_there_is(engine, client))
        if comm.rank == 0:
            want.extend(found)
            states.extend(own)

    def later(comm: Any, by_state: bool) -> None:
        engine, client = made_for_resuming(comm, kind, config)
        train(engine, range(7, 8))  # leaves no trace
        if by_state:
            weights, state, schedule = copy.deepcopy(states)
            engine.load_module_state_dict(weights)
            engine.optimizer.load_state_dict(state)
            engine.lr_scheduler.load_state_dict(schedule)
        else:
            engine.load_checkpoint(tmp_path, tag="t")
        assert what_there_is(engine, client) == want[0]
        assert client.param_groups[0] is engine.optimizer.param_groups[0]
        train(engine, range(3, 6))
        if comm.size == 2:
            assert what_there_is(engine, client) == want[1]

    run_local_ranks(2, whole)
    for world, by_state in ((2, False), (1, False), (3, False), (2, True)):
        run_local_ranks(world, lambda comm, by_state=by_state: later(comm, by_state))
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
        before = what_there_is(other, client)
        with pytest.raises(thinwire.CorruptCheckpoint, match=text):
            other.load_checkpoint(tmp_path, tag="t")
        assert what_there_is(other, client) == before and not client.state


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
def test_an_error_of_step_is_raised_and_the_other_ranks_learn_of_it(comm: Any) -> None:
    model = Net()
    client = Stubborn(model.parameters(), lr=0.1)
    client.rank = comm.rank
    engine = make(comm, PLAIN, model=model, optimizer=client)
    train(engine, range(2))
    kind = ZeroDivisionError if comm.rank == 1 else thinwire.CommFailure
    with pytest.raises(kind, match="stubborn"):
        train(engine, range(2, 4))


class Swapping(torch.optim.SGD):
    """Has other weights for evaluation, as schedule-free optimizers do."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


NET = Net()
PARAMETERS = list(NET.parameters())
SGD = torch.optim.SGD(PARAMETERS, lr=0.1)
GROUPED = torch.optim.SGD([{"params": PARAMETERS, "expert_group": object()}], lr=0.1)
AMSGRAD = torch.optim.Adam(PARAMETERS, amsgrad=True)
DIFFERENTIABLE = torch.optim.NAdam(PARAMETERS, differentiable=True)
SEMANTICS = {"thinwire": {"semantics": "deepspeed"}}
REFUSED = [
    (SGD, zero(1), "SGD makes its own steps, so zero_optimization.stage must be 0"),
    (SGD, zero(2), "stage must be 0, got 2; give torch.optim.Adam or AdamW"),
    (SGD, SEMANTICS, "semantics must be corrected, got deepspeed"),
    (GROUPED, {}, "expert_group"),
    (torch.optim.LBFGS(PARAMETERS), {}, "LBFGS needs a closure"),
    (torch.optim.SparseAdam(PARAMETERS), {}, "sparse gradients"),
    (AMSGRAD, zero(1), "Adam makes its own steps.*unless they have amsgrad"),
    (DIFFERENTIABLE, {}, "'differentiable'"),
    (Swapping(PARAMETERS), BF16, "Swapping has train.. and eval.*got bfloat16"),
]


@pytest.mark.parametrize(("client", "changes", "text"), REFUSED)
@by_ranks(1)
def test_combinations_without_meaning_are_refused_by_name(
    comm: Any, client: Any, changes: dict[str, Any], text: str
) -> None:
    before = [p.data_ptr() for p in PARAMETERS]
    with pytest.raises(thinwire.InvalidArgument, match=text):
        make(comm, PLAIN | changes, model=NET, optimizer=client)
    assert before == [p.data_ptr() for p in PARAMETERS]


@by_ranks(2)
def test_ranks_with_other_settings_are_refused(comm: Any) -> None:
    model = Net()
    client = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.1 * comm.rank)
    with pytest.raises(thinwire.InvalidArgument, match="momentum"):
        make(comm, PLAIN, model=model, optimizer=client)

# SPDX-License-Identifier: Apache-2.0
"""States: torch's form, runs that go on bit-equal, and what is refused."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import warnings
from collections.abc import Iterator
from typing import Any

import optim_cases as cases
import pytest
import torch
from thinwire import AdamW, Error
from thinwire.comm import run_local_ranks
from thinwire.errors import CorruptCheckpoint, FailedPrecondition, InvalidArgument

pytestmark = pytest.mark.quick


def through_a_file(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stop", [2, 6, 14])
@pytest.mark.parametrize("kind", cases.KINDS)
def test_a_resumed_run_has_the_same_bits(kind: str, stop: int, dtype: Any) -> None:
    def whole(comm: Any) -> tuple[str, list[str]]:
        net, optimizer = cases.made(kind, comm, dtype=dtype)
        phases = cases.train(net, optimizer, range(18), comm.rank)
        return cases.bits(net), phases[stop:]

    def first(comm: Any) -> tuple[Any, Any]:
        net, optimizer = cases.made(kind, comm, dtype=dtype)
        cases.train(net, optimizer, range(stop), comm.rank)
        return through_a_file(net.state_dict()), through_a_file(optimizer.state_dict())

    def second(comm: Any) -> tuple[str, list[str]]:
        net, optimizer = cases.made(kind, comm, seed=9, dtype=dtype)
        weights, state = saved[comm.rank]
        net.load_state_dict(weights)
        optimizer.load_state_dict(state)
        phases = cases.train(net, optimizer, range(stop, 18), comm.rank)
        return cases.bits(net), phases

    # Between two exchanges.
    is_behind = stop in {"ZeroOneAdam": [14]}.get(
        kind, [6, 14] if "Outer" in kind or "Under" in kind else []
    )
    told = pytest.warns(UserWarning, match="synchronize.*evaluation")
    with told if is_behind else no_warning():
        saved = run_local_ranks(2, first)
    assert run_local_ranks(2, second) == run_local_ranks(2, whole)


@contextlib.contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("kind", cases.KINDS)
@pytest.mark.filterwarnings("ignore:parameters differ")
def test_betas_and_limits_are_those_of_the_state(kind: str, caplog: Any) -> None:
    numbers = {"betas": (0.8, 0.9), "eps": 1e-4}
    if "Lamb" in kind:
        numbers["max_coeff"] = 0.5

    def made(comm: Any, seed: int, **numbers: Any) -> Any:
        net = cases.model(seed)
        return net, cases.make(kind, [{"params": net.parameters(), **numbers}], comm)

    def run(comm: Any) -> None:
        whole, optimizer = made(comm, 0, **numbers)
        cases.train(whole, optimizer, range(14), comm.rank)
        net, resumed = made(comm, 9)
        cases.train(net, resumed, range(2), comm.rank)
        net.load_state_dict(whole.state_dict())
        resumed.load_state_dict(optimizer.state_dict())
        for key, value in numbers.items():
            assert resumed.param_groups[0][key] == value
        cases.train(whole, optimizer, range(14, 18), comm.rank)
        cases.train(net, resumed, range(14, 18), comm.rank)
        assert cases.bits(net) == cases.bits(whole)

    with caplog.at_level("INFO", "thinwire"):
        run_local_ranks(2, run)
    for key in numbers:
        assert caplog.text.count(f"param_groups[0]['{key}'] is") == 1


def test_a_state_has_torchs_form_and_views_of_one_array() -> None:
    net = cases.model()
    net[2].bias.requires_grad_(False)
    optimizer = cases.make("OnebitAdam", net.parameters())
    cases.train(net, optimizer, range(2))
    state = optimizer.state_dict()
    assert set(state) == {"state", "param_groups", "thinwire"}
    assert set(state["state"]) == {0, 1, 2}
    assert state["param_groups"][0]["params"] == [0, 1, 2, 3]
    entry = state["state"][0]
    assert {"step", "exp_avg", "exp_avg_sq"} <= set(entry)
    assert entry["exp_avg"].shape == net[0].weight.shape and int(entry["step"]) == 2
    storages = {
        e["exp_avg"].untyped_storage().data_ptr() for e in state["state"].values()
    }
    assert len(storages) == 1
    record = state["thinwire"]
    assert record["format"] == 1 and record["optimizer"] == "onebit_adam"
    assert (record["rank"], record["world_size"]) == (0, 1)
    assert record["semantics"] == "corrected" and "0" in record["layout"]
    cases.train(net, optimizer, range(4))
    assert {"denominator"} <= set(optimizer.state_dict()["state"][0])
    assert set(optimizer.state_dict()["state"][0]) & {"worker_error"} == set()
    # Its own arrays: the run goes on without changing what was saved.
    assert int(entry["step"]) == 2


def test_a_fresh_optimizer_loads_its_own_state() -> None:
    optimizer = cases.make("OnebitAdam", cases.model().parameters())
    optimizer.load_state_dict(optimizer.state_dict())
    empty = {"state": {}, "param_groups": optimizer.state_dict()["param_groups"]}
    empty["param_groups"][0]["lr"] = 0.125
    optimizer.load_state_dict(empty)
    assert optimizer.param_groups[0]["lr"] == 0.125
    optimizer.step()
    assert optimizer._made.optimizer.learning_rate(0) == 0.125
    with pytest.raises(
        FailedPrecondition, match="is empty, and this optimizer has taken 1"
    ):
        optimizer.load_state_dict(empty)


LOW_BIT = {"OnebitAdam": 6, "OnebitLamb": 6, "LeanOnebitAdam": 6, "ZeroOneAdam": 13}


def saved_by_two_ranks(kind: str, steps: int = 0) -> list[Any]:
    """Weights and states, by default after the freeze."""

    def save(comm: Any) -> Any:
        net, optimizer = cases.made(kind, comm)
        cases.train(net, optimizer, range(steps or LOW_BIT[kind]), comm.rank)
        optimizer.synchronize()
        return through_a_file((net.state_dict(), optimizer.state_dict()))

    return run_local_ranks(2, save)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kind", LOW_BIT)
def test_the_state_of_rank_0_loads_on_any_rank(kind: str, ranks: int) -> None:
    weights, state = saved_by_two_ranks(kind)[0]

    def load(comm: Any, **keywords: Any) -> Any:
        net, optimizer = cases.made(kind, comm, seed=9)
        net.load_state_dict(weights)
        optimizer.load_state_dict(state, **keywords)
        loaded = optimizer.state_dict()
        for number, entry in state["state"].items():
            for name, value in entry.items():
                assert torch.equal(loaded["state"][number][name], value)
        keeps = not keywords and (ranks, comm.rank) == (2, 0)
        residuals = loaded["thinwire"].get("worker_error", torch.zeros(1))
        assert bool(residuals.any()) == keeps
        cases.train(net, optimizer, range(3), comm.rank)
        return cases.bits(net)

    with pytest.warns(UserWarning, match='begin at 0.*residuals="drop"') as told:
        bits = run_local_ranks(ranks, load)
    assert len(told) == 1 and f"this is rank {ranks == 2:d} of" in str(told[0].message)
    with no_warning():
        dropped = run_local_ranks(ranks, lambda comm: load(comm, residuals="drop"))
    assert len({*bits, *dropped}) == (2 if ranks == 2 else 1)


def test_states_of_other_ranks_are_refused() -> None:
    saved = saved_by_two_ranks("OnebitAdam")

    def load(comm: Any) -> str:
        net, optimizer = cases.made("OnebitAdam", comm)
        before = cases.bits(net)
        _, state = saved[1]
        if (comm.rank, comm.size) == (1, 2):
            state = through_a_file(state)
            state["thinwire"]["rank"] = 3
        with pytest.raises(CorruptCheckpoint) as caught:
            optimizer.load_state_dict(state)
        with pytest.raises(InvalidArgument, match="'keep' or 'drop', got 'keeps'"):
            optimizer.load_state_dict(state, residuals="keeps")
        assert cases.bits(net) == before
        cases.train(net, optimizer, range(2), comm.rank)
        optimizer.load_state_dict(saved[1][1], residuals="drop")
        return str(caught.value)

    def load_shards(comm: Any, residuals: str) -> str:
        optimizer = cases.made("LeanOnebitAdam", comm)[1]
        try:
            optimizer.load_state_dict(shards, residuals=residuals)
        except (CorruptCheckpoint, InvalidArgument) as error:
            return str(error)
        return ""

    shards = saved_by_two_ranks("LeanOnebitAdam", 2)[0][1]
    for residuals in ("keep", "drop"):
        texts = run_local_ranks(2, functools.partial(load_shards, residuals=residuals))
        assert all("each rank has a part of it: thinwire.save" in t for t in texts)
    for texts in (run_local_ranks(2, load), run_local_ranks(3, load)):
        assert all('residuals="drop"' in text for text in texts)
        assert all("thinwire.save and thinwire.load carry" in text for text in texts)


@pytest.mark.parametrize("kind", ["AdamW", "OnebitAdam", "Lamb", "OnebitLamb"])
@pytest.mark.parametrize("torchs", [torch.optim.Adam, torch.optim.AdamW])
def test_moments_of_torch(kind: str, torchs: Any) -> None:
    net = cases.model()
    theirs = torchs(net.parameters(), lr=1e-2, weight_decay=1e-2)
    for step in range(3):
        theirs.zero_grad()
        cases.loss_of(net, 0, step).backward()
        theirs.step()
    ours = cases.make(kind, net.parameters(), lr=0.5)
    is_coupled = torchs is torch.optim.Adam
    with pytest.warns(UserWarning, match="decoupled") if is_coupled else no_warning():
        ours.load_state_dict(through_a_file(theirs.state_dict()))
    assert ours.param_groups[0]["lr"] == 1e-2
    entry = ours.state_dict()["state"][0]
    assert torch.equal(entry["exp_avg"], theirs.state[net[0].weight]["exp_avg"])
    assert int(entry["step"]) == 3
    cases.train(net, ours, range(3, 4))


def test_states_that_do_not_fit_change_nothing() -> None:
    net, optimizer = cases.made("OnebitAdam")
    cases.train(net, optimizer, range(6))
    good = optimizer.state_dict()
    other = cases.make("OnebitAdam", cases.model().parameters())

    state, groups, record = good["state"], good["param_groups"], good["thinwire"]
    group = groups[0]
    entry = {k: v for k, v in state[1].items() if k != "exp_avg"}
    lacks = {k: v for k, v in state.items() if k != 2}
    for text, change in (
        ("number of parameter groups", {"param_groups": groups * 2}),
        ("doesn't match the size", {"param_groups": [{**group, "params": [0]}]}),
        (
            r"betas must be an array of two numbers in \[0, 1\)",
            {"param_groups": [{**group, "betas": (2, 0.6)}]},
        ),
        (
            "eps must be a finite number > 0",
            {"param_groups": [{**group, "eps": torch.ones(2)}]},
        ),
        (
            "another parameter layout",
            {
                "param_groups": [{**group, "eps": 1e-3}],
                "thinwire": record | {"layout": "w 3 group 0\n"},
            },
        ),
        (r"'lr'\] of .* in fp32", {"param_groups": [{**group, "lr": 1e39}]}),
        ("'maximize'", {"param_groups": [{**group, "maximize": True}]}),
        ("with 'params'", {"param_groups": [{}]}),
        ("must be a number, got 'x'", {"param_groups": [{**group, "lr": "x"}]}),
        ("format is 7", {"thinwire": record | {"format": 7}}),
        (
            r"state\['steps'\] must be in \[-2\^63",
            {"thinwire": record | {"steps": 2**63}},
        ),
        (
            r"state\['layout'\] must be text of",
            {"thinwire": record | {"layout": "\udcff"}},
        ),
        ("a name must be text of", {"thinwire": record | {3: 1}}),
        ("layout", {"thinwire": record | {"layout": "w 3 group 0\n"}}),
        ("'thinwire' must be a mapping", {"thinwire": 3}),
        ("lacks parameter 'param.2'", {"state": lacks}),
        ("lacks exp_avg of parameter 'param.1'", {"state": state | {1: entry}}),
        ("'state' must be a mapping", {"state": None}),
        ("parameter 1 must be a mapping", {"state": state | {1: 3}}),
        ("must be a tensor", {"state": state | {1: {"exp_avg": [1, 2]}}}),
        ("'param_groups' must be a sequence", {"param_groups": None}),
    ):
        with pytest.raises((Error, TypeError, ValueError), match=text):
            other.load_state_dict({**good, **change})
        assert other._made.optimizer.steps == 0
        assert other.param_groups[0]["eps"] == group["eps"]
    sgd = {0: {"momentum_buffer": torch.ones(33, 7)}}
    adam = {0: {"step": 1, "exp_avg": 0, "exp_avg_sq": 0}}
    zero_one = cases.make("ZeroOneAdam", cases.model().parameters())
    for text, into, foreign in (
        ("compressed stage, without the record", other, state),
        ("lacks exp_avg", other, sgd),
        ("0/1 Adam has no exact", zero_one, adam),
    ):
        with pytest.raises(InvalidArgument, match=text):
            into.load_state_dict({"state": foreign, "param_groups": groups})
        assert into._made.optimizer.steps == 0


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (-3.0, "'param.1' must be a whole number >= 0"),
        (2.5, "'param.1' must be a whole number >= 0"),
        (math.nan, "'param.1' must be a whole number >= 0"),
        (3.0, "different numbers of steps.*'param.1' 3"),
    ],
)
def test_steps_of_torch_that_no_run_has_are_refused(step: float, text: str) -> None:
    net = cases.model()
    torchs = torch.optim.AdamW(net.parameters())
    cases.loss_of(net, 0, 0).backward()
    torchs.step()
    state = torchs.state_dict()
    state["state"][1]["step"] = torch.tensor(step)
    with pytest.raises((CorruptCheckpoint, InvalidArgument), match=text):
        cases.make("OnebitAdam", net.parameters()).load_state_dict(state)


@pytest.mark.filterwarnings("ignore:parameters differ")
def test_a_state_saved_under_the_next_step_needs_the_option() -> None:
    def save(comm: Any) -> Any:
        net, optimizer = cases.made("OnebitAdamUnder", comm)
        cases.train(net, optimizer, range(8), comm.rank)
        differing = through_a_file(optimizer.state_dict())
        optimizer.synchronize()
        return differing, through_a_file((net.state_dict(), optimizer.state_dict()))

    def load(comm: Any) -> str:
        differing, (weights, state) = saved[comm.rank]
        net, optimizer = cases.made("OnebitAdam", comm, seed=9)
        for residuals in ["drop"] if comm.size == 1 else ["keep", "drop"]:
            with pytest.raises(CorruptCheckpoint, match="compressed_under_next_step"):
                optimizer.load_state_dict(differing, residuals=residuals)
        assert not optimizer._native.optimizer.steps
        net.load_state_dict(weights)
        optimizer.load_state_dict(state, residuals="keep" if comm.size > 1 else "drop")
        cases.train(net, optimizer, range(8, 12), comm.rank)
        return cases.bits(net)

    saved = run_local_ranks(2, save)
    assert len(set(run_local_ranks(2, load))) == 1
    run_local_ranks(1, load)


AVERAGES: list[dict[str, Any]] = [{"bits": 4}, {"low_rank": 2, "first_steps": 2}]


@pytest.mark.parametrize("average", AVERAGES, ids=lambda average: next(iter(average)))
def test_a_damaged_state_of_an_average_is_refused_by_name(
    average: dict[str, Any],
) -> None:
    """So is one that lacks all residuals, unless they are dropped on purpose."""

    def body(comm: Any) -> None:
        net = torch.nn.Linear(40, 40)
        optimizer = AdamW(net.parameters(), process_group=comm, **average)
        for _ in range(3):
            net(torch.ones(1, 40)).square().mean().backward()
            optimizer.step()
        good = optimizer.state_dict()
        parts = ["average.worker_error", "average.server_error"]
        damages: list[tuple[str, dict[str, Any]]] = [
            (key, {key: None})
            for key in (*parts, "residual_layout", "rank", "world_size")
        ]
        damages += [
            (parts[0], dict.fromkeys((*parts, "residual_layout"))),
            (parts[0], {parts[0]: torch.ones(1640, dtype=torch.int32)}),
            ("world_size", {"world_size": -5}),
            ("rank", {"rank": "0"}),
            ("average_bits", {"average_bits": -5}),
            ("average_bits", {"average_bits": "4"}),
            ("low_rank", {"low_rank": -5}),
        ]
        if "low_rank" in average:
            for name in ("low_rank.factors", "low_rank.generators"):
                damages += [(name, {name: None}), (name, {name: torch.ones(3)})]
        for named, damage in damages:
            record = {
                key: value
                for key, value in (good["thinwire"] | damage).items()
                if value is not None
            }
            with pytest.raises(CorruptCheckpoint, match=named):
                optimizer.load_state_dict({**good, "thinwire": record})
        record = {k: v for k, v in good["thinwire"].items() if k not in parts}
        optimizer.load_state_dict({**good, "thinwire": record}, residuals="drop")
        optimizer.load_state_dict(good)

    run_local_ranks(2, body)

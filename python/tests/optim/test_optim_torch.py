# SPDX-License-Identifier: Apache-2.0
"""The behaviour that torch's own tests require of an optimizer."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import warnings
from typing import Any

import optim_cases as cases
import pytest
import torch
from local_ranks import by_ranks
from thinwire.comm import run_local_ranks
from thinwire.errors import FailedPrecondition

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("kind", cases.KINDS)
def test_it_learns(kind: str) -> None:
    net, optimizer = cases.made(kind)
    first = float(cases.loss_of(net, 0, 0).detach())
    cases.train(net, optimizer, [0] * 60)
    assert float(cases.loss_of(net, 0, 0).detach()) < 0.5 * first


def test_a_closure_is_run_with_gradients_and_its_loss_returned() -> None:
    net, optimizer = cases.made("OnebitAdam")

    def closure() -> torch.Tensor:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = cases.loss_of(net, 0, 0)
        loss.backward()
        return loss

    with torch.no_grad():
        first = optimizer.step(closure)
    assert isinstance(first, torch.Tensor) and optimizer.step(closure) < first
    assert optimizer.step() is None


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_and_its_variants_are_the_same(set_to_none: bool) -> None:
    def run(zero: Any) -> str:
        net, optimizer = cases.made("OnebitAdam")
        for step in range(6):
            zero(net, optimizer)
            cases.loss_of(net, 0, step).backward()
            optimizer.step()
        return cases.bits(net)

    ours = run(lambda net, optimizer: optimizer.zero_grad(set_to_none))
    assert ours == run(lambda net, optimizer: net.zero_grad(set_to_none))


def test_a_missing_gradient_counts_as_zero() -> None:
    def run(gradient: torch.Tensor | None) -> list[float]:
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = cases.make("AdamW", [parameter], weight_decay=0.5)
        parameter.grad = gradient
        optimizer.step()
        return parameter.tolist()

    assert run(None) == run(torch.zeros(3)) != [1.0, 1.0, 1.0]


def test_step_hooks_and_profiler() -> None:
    net, seen = cases.model(), []
    optimizer = cases.make("OnebitAdam", net.parameters())
    optimizer.register_step_pre_hook(lambda o, a, k: seen.append("pre"))
    optimizer.register_step_post_hook(lambda o, a, k: seen.append(o.report.phase))
    with torch.profiler.profile() as profile:
        cases.train(net, optimizer, range(1))
    assert seen == ["pre", "exact"]
    assert any("Optimizer.step#OnebitAdam" in e.name for e in profile.events())


def test_named_parameters() -> None:
    net, optimizer = cases.made("OnebitAdam", named=True)
    names = [name for name, _ in net.named_parameters()]
    assert optimizer.param_groups[0]["param_names"] == names
    assert "0.weight 33x7" in optimizer.state_dict()["thinwire"]["layout"]
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == names
    unnamed = cases.make("OnebitAdam", cases.model().parameters())
    assert "param.0 33x7" in unnamed.state_dict()["thinwire"]["layout"]


def test_state_dict_hooks() -> None:
    net, seen = cases.model(), []
    optimizer = cases.make("OnebitAdam", net.parameters())
    optimizer.register_state_dict_pre_hook(lambda o: seen.append("pre"))
    optimizer.register_state_dict_post_hook(
        lambda o, state: seen.append(sorted(state)) or {**state, "mine": 1}
    )
    state = optimizer.state_dict()
    assert seen == ["pre", ["param_groups", "state", "thinwire"]] and state["mine"] == 1
    other = cases.make("OnebitAdam", cases.model(1).parameters())
    other.register_load_state_dict_pre_hook(
        lambda o, s: {**s, "param_groups": [{**s["param_groups"][0], "lr": 0.75}]}
    )
    other.register_load_state_dict_post_hook(lambda o: seen.append("loaded"))
    other.load_state_dict(state)
    assert other.param_groups[0]["lr"] == 0.75 and seen[-1] == "loaded"


def test_a_group_may_be_added_before_the_first_step() -> None:
    net = cases.model()
    optimizer = cases.make("OnebitAdam", net[0].parameters())
    optimizer.add_param_group({"params": list(net[2].parameters()), "lr": 0.5})
    assert cases.are_in_a_row(net.parameters())
    before = net[2].weight.detach().clone()
    cases.train(net, optimizer, range(1))
    assert not torch.equal(net[2].weight, before)
    with pytest.raises(FailedPrecondition, match="add_param_group: only before"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    assert len(optimizer.param_groups) == 2
    other = cases.make("OnebitAdam", cases.model().parameters())
    with pytest.raises(Exception, match="float64"):
        other.add_param_group(
            {"params": [torch.nn.Parameter(torch.ones(1, dtype=torch.float64))]}
        )
    assert len(other.param_groups) == 1
    other.step()


@by_ranks(2)
def test_a_group_that_one_rank_refuses_is_added_nowhere(comm: Any) -> None:
    net = cases.model()
    optimizer = cases.make("OnebitAdam", net[0].parameters(), comm)
    more = net[0 if comm.rank == 0 else 2].parameters()
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": list(more)})
    optimizer.step()
    if comm.rank == 1:
        with pytest.raises(FailedPrecondition, match="add_param_group: only before"):
            optimizer.add_param_group({"params": list(net[2].parameters())})
    optimizer.step()
    assert len(optimizer.param_groups) == 1


def test_the_norm_may_be_set_before_the_first_step() -> None:
    net, optimizer = cases.made("OnebitAdam")
    assert optimizer.max_grad_norm == 0
    optimizer.set_max_grad_norm(1e-3)
    assert optimizer.max_grad_norm == 1e-3
    cases.train(net, optimizer, range(1))
    assert optimizer.report.clip_factor < 1
    with pytest.raises(FailedPrecondition, match="set_max_grad_norm"):
        optimizer.set_max_grad_norm(1.0)


def test_copies_are_refused() -> None:
    optimizer = cases.make("OnebitAdam", cases.model().parameters())
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled.*state_dict"):
            copied(optimizer)
    with pytest.raises(TypeError, match="state_dict"):
        optimizer.share_memory()


def test_close_is_idempotent_and_named_afterwards() -> None:
    net, optimizer = cases.made("OnebitAdam")
    cases.train(net, optimizer, range(1))
    optimizer.close()
    optimizer.close()
    for use in (optimizer.step, optimizer.state_dict, optimizer.synchronize):
        with pytest.raises(FailedPrecondition, match="closed"):
            use()
    assert torch.isfinite(net[0].weight).all()


def test_a_step_that_is_not_finite_changes_nothing_anywhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "thinwire")

    def body(comm: Any) -> tuple[bool, bool, int]:
        net, optimizer = cases.made("OnebitAdam", comm)
        cases.train(net, optimizer, range(2), comm.rank)
        before = cases.bits(net)
        for _ in range(5):
            cases.loss_of(net, comm.rank, 3).backward()
            if comm.rank == 1:
                net[0].weight.grad[0, 0] = float("nan")
            optimizer.step()
        assert optimizer.report is not None
        same = cases.bits(net) == before
        return same, optimizer.report.applied, optimizer.report.nonfinite_rank

    assert [(same, ok) for same, ok, _ in run_local_ranks(2, body)] == [
        (True, False)
    ] * 2
    lines = [r.message for r in caplog.records if "was skipped on all" in r.message]
    assert [line.partition(" so far")[0][-1] for line in lines] == ["1", "2", "4"]
    assert all("not finite on rank 1" in line for line in lines)


def test_ranks_stay_equal_and_the_phases_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "thinwire")

    def body(comm: Any) -> tuple[str, list[str]]:
        net, optimizer = cases.made("OnebitAdam", comm, seed=comm.rank)
        phases = cases.train(net, optimizer, range(8), comm.rank)
        return cases.bits(net), phases

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, two = run_local_ranks(2, body)
    assert one == two and one[1] == ["exact"] * 4 + ["compressed"] * 4
    (line,) = [r.message for r in caplog.records if "from now on" in r.message]
    text = "step 5: from now on ranks exchange momentum in one bit per element; a step sent"
    assert line.startswith(text)


def test_parameters_begin_with_rank_0s_values_unless_told_otherwise() -> None:
    def body(comm: Any, broadcast: bool) -> str:
        net = cases.model(seed=comm.rank)
        cases.make("AdamW", net.parameters(), comm, broadcast=broadcast)
        return cases.bits(net)

    first, second = (cases.bits(cases.model(seed)) for seed in (0, 1))
    assert run_local_ranks(2, lambda c: body(c, True)) == [first, first]
    assert run_local_ranks(2, lambda c: body(c, False)) == [first, second]


def test_the_last_reference_closes() -> None:
    optimizer = cases.make("OnebitAdam", cases.model().parameters())
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    native = optimizer._made.optimizer
    assert native.steps == 0
    del optimizer, schedule
    gc.collect()
    with pytest.raises(FailedPrecondition, match="closed"):
        native.state_dict()

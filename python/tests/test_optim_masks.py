# SPDX-License-Identifier: Apache-2.0
"""The script's masks and the step that it names hold: at a load, and as training goes on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import thinwire
import torch
from optim_cases import on_ranks
from thinwire import InvalidArgument

pytestmark = pytest.mark.quick

LIVE = torch.tensor([1.0, 1.0, 0.0, 0.0])
KINDS: dict[str, dict[str, Any]] = {
    "OnebitAdam": {"freeze_step": 2},
    "LeanOnebitAdam": {"freeze_step": 2},
    "OnebitLamb": {"freeze_step": 2},
    "ZeroOneAdam": {"var_freeze_step": 2, "local_step_clipper": 1},
}


def make(kind: str, communicator: Any, mask: torch.Tensor | None, **named: Any) -> Any:
    parameter = torch.nn.Parameter(torch.ones(4))
    group = {"params": [parameter]} | ({} if mask is None else {"exp_avg_mask": mask})
    arguments = KINDS[kind] | named
    made = getattr(thinwire, kind)(
        [group], lr=0.1, process_group=communicator, **arguments
    )
    return made, parameter


def step(optimizer: Any, parameter: torch.Tensor, times: int) -> torch.Tensor:
    """What it moved by."""
    before = parameter.detach().clone()
    for _ in range(times):
        optimizer.zero_grad()
        parameter.grad = torch.tensor([1.0, -1.0, 2.0, 0.5])
        optimizer.step()
    return parameter.detach() - before


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_that_changes_is_followed(kind: str, ranks: int) -> None:
    def body(communicator: Any) -> None:
        optimizer, parameter = make(kind, communicator, None)
        step(optimizer, parameter, 4)
        group = optimizer.param_groups[0]
        group["exp_avg_mask"] = LIVE.clone()
        step(optimizer, parameter, 1)
        moved = step(optimizer, parameter, 2)
        assert not moved[2:].any() and moved[:2].all()
        assert optimizer.report.masked == 2
        group["exp_avg_mask"].fill_(1)  # in place
        step(optimizer, parameter, 2)
        assert step(optimizer, parameter, 1).all()
        assert optimizer.report.masked == 0
        del group["exp_avg_mask"]
        step(optimizer, parameter, 1)

    on_ranks(ranks, body)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_that_ranks_disagree_about_is_refused_on_all(kind: str) -> None:
    def body(communicator: Any) -> str:
        optimizer, parameter = make(kind, communicator, None)
        step(optimizer, parameter, 4)
        if communicator.rank == 1:
            optimizer.param_groups[0]["exp_avg_mask"] = LIVE.clone()
        with pytest.raises(InvalidArgument) as caught:
            step(optimizer, parameter, 1)
        optimizer.param_groups[0]["exp_avg_mask"] = LIVE.clone()
        step(optimizer, parameter, 1)
        return str(caught.value)

    assert all("rank 1" in text for text in on_ranks(2, body))


@pytest.mark.parametrize("through_files", [False, True])
@pytest.mark.parametrize("first,then", [(None, LIVE), (LIVE, None)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_scripts_mask_wins_at_a_load(
    kind: str,
    first: torch.Tensor | None,
    then: torch.Tensor | None,
    through_files: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def body(communicator: Any) -> list[str]:
        optimizer, parameter = make(kind, communicator, first)
        step(optimizer, parameter, 4)
        other, own = make(kind, communicator, then)
        notes = []
        if through_files:
            thinwire.save(tmp_path, optimizer, 4)
            notes = thinwire.load(tmp_path, other).notes
        else:
            own.data.copy_(parameter.data)
            other.load_state_dict(optimizer.state_dict())
        step(other, own, 2)
        moved = step(other, own, 1)
        assert moved[:2].all()
        assert bool(moved[2:].all()) == (then is None)
        has_mask = "exp_avg_mask" in other.param_groups[0]
        assert has_mask == (then is not None)
        return list(notes)

    with caplog.at_level(logging.INFO, logger="thinwire"):  # of all threads
        of_ranks = on_ranks(2, body)
    for notes in of_ranks:
        said = "\n".join(notes) if through_files else caplog.text
        assert "exp_avg_mask" in said and "2 elements" in said


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_is_named_decides_the_stage_after_a_load(kind: str) -> None:
    name = "var_freeze_step" if kind == "ZeroOneAdam" else "freeze_step"

    def body(communicator: Any) -> None:
        optimizer, parameter = make(kind, communicator, None)
        step(optimizer, parameter, 4)
        state = optimizer.state_dict()
        for named, freeze_step in (({name: 9}, 9), ({name: None}, 2)):
            other, own = make(kind, communicator, None, **named)
            own.data.copy_(parameter.data)
            other.load_state_dict(state)
            assert other.freeze_step == freeze_step
            step(other, own, 1)
            if kind != "ZeroOneAdam" or named[name] is None:
                is_exact = other.report.phase == "exact"
                assert is_exact == (named[name] is not None)

    on_ranks(2, body)


def test_the_length_of_the_run_decides_what_is_not_named() -> None:
    made, _ = make("OnebitAdam", None, None, freeze_step=None, total_steps=300)
    assert made.freeze_step == 60
    made, _ = make("OnebitAdam", None, None, freeze_step=None)
    assert made.freeze_step == 100_000
    made, _ = make("OnebitAdam", None, None, freeze_step="auto", total_steps=300)
    assert made.freeze_step == "auto"
    made, _ = make("ZeroOneAdam", None, None, var_freeze_step=None, total_steps=300)
    assert made.freeze_step == 150
    assert thinwire.AdamW([torch.nn.Parameter(torch.ones(1))]).freeze_step is None

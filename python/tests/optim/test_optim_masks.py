# SPDX-License-Identifier: Apache-2.0
"""The script's masks and the step that it names hold: at a load, and as training goes on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import thinwire
import torch
from local_ranks import by_ranks
from thinwire import InvalidArgument
from thinwire.comm import run_local_ranks

pytestmark = pytest.mark.quick

LIVE = torch.tensor([1.0, 1.0, 0.0, 0.0])
KINDS: dict[str, dict[str, Any]] = {
    "OnebitAdam": {"freeze_step": 2},
    "LeanOnebitAdam": {"freeze_step": 2},
    "OnebitLamb": {"freeze_step": 2},
    "ZeroOneAdam": {"var_freeze_step": 2, "local_step_clipper": 1},
}


def make(kind: str, comm: Any, mask: torch.Tensor | None, **named: Any) -> Any:
    parameter = torch.nn.Parameter(torch.ones(4))
    group = {"params": [parameter]} | ({} if mask is None else {"exp_avg_mask": mask})
    arguments = KINDS[kind] | named
    made = getattr(thinwire, kind)([group], lr=0.1, process_group=comm, **arguments)
    return made, parameter


def step(optimizer: Any, parameter: torch.Tensor, times: int) -> torch.Tensor:
    """Returns by how much the parameter has moved."""
    before = parameter.detach().clone()
    for _ in range(times):
        optimizer.zero_grad()
        parameter.grad = torch.tensor([1.0, -1.0, 2.0, 0.5])
        optimizer.step()
    return parameter.detach() - before


@pytest.mark.parametrize("kind", KINDS)
def test_flat_masks_are_those_of_the_shapes(kind: str) -> None:
    """One of a parameter, and one of all elements of a group in its order."""

    def moved(form: str) -> torch.Tensor:
        group: dict[str, Any] = {
            "params": [
                torch.nn.Parameter(torch.ones(n)) for n in ((2, 3), (4,), (2, 1))
            ]
        }
        masks = [
            torch.tensor([[1.0, 0, 1], [0, 0, 1]]),
            LIVE,
            torch.tensor([[1.0], [0]]),
        ]
        flat = [mask.flatten() for mask in masks]
        forms = {"shapes": masks, "flat": flat, "one": torch.cat(flat)}
        group["exp_avg_mask"] = forms[form]
        made = getattr(thinwire, kind)([group], lr=0.1, **KINDS[kind])
        for k in range(4):
            for p in group["params"]:
                p.grad = torch.full_like(p, k + 1.0)
            made.step()
        group["exp_avg_mask"] = torch.ones(11)
        with pytest.raises(InvalidArgument, match="or one of all their 12 elements"):
            made.step()
        return torch.cat([p.detach().flatten() for p in group["params"]])

    want = moved("shapes")
    assert torch.equal(moved("flat"), want) and torch.equal(moved("one"), want)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@by_ranks("ranks")
def test_a_mask_that_changes_is_followed(comm: Any, kind: str, ranks: int) -> None:
    optimizer, parameter = make(kind, comm, None)
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


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_that_one_rank_refuses_is_refused_on_all(kind: str, steps: int) -> None:
    """In an exact step and after the freeze; then all go on."""

    def body(comm: Any) -> tuple[str, torch.Tensor]:
        optimizer, parameter = make(kind, comm, None)
        step(optimizer, parameter, steps)
        before = parameter.detach().clone()
        group = optimizer.param_groups[0]
        group["exp_avg_mask"] = "x" if comm.rank == 0 else LIVE.clone()
        with pytest.raises(
            (InvalidArgument, TypeError), match="exp_avg_mask"
        ) as caught:
            step(optimizer, parameter, 1)
        assert torch.equal(parameter, before)
        assert optimizer._made.optimizer.steps == steps
        group["exp_avg_mask"] = LIVE.clone()
        step(optimizer, parameter, 6)
        assert optimizer.report.masked == 2
        return str(caught.value), parameter.detach().clone()

    (text, value), *others = run_local_ranks(3, body)
    assert "must be tensors, got 'x'" in text
    for text, other in others:
        assert "must be the same on all ranks" in text and torch.equal(value, other)


WRITES: dict[str, Any] = {
    "data": lambda mask: mask.data[:2].fill_(0),
    "numpy": lambda mask: mask.numpy()[:2].fill(0),
    "places": lambda mask: mask.data.copy_(mask.flip(0)),  # the sum of its bits stays
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
@by_ranks(2)
def test_what_is_written_past_autograd_into_a_mask_counts(
    comm: Any, write: Any, dtype: torch.dtype
) -> None:
    mask = torch.tensor([1, 1, 0, 1]).to(dtype)
    optimizer, parameter = make("OnebitAdam", comm, mask)
    step(optimizer, parameter, 4)
    write(mask)
    moved = step(optimizer, parameter, 1)
    assert not moved[mask == 0].any()
    step(optimizer, parameter, 1)  # what came back takes part from here on
    assert optimizer.report.masked == int((mask == 0).sum())


def test_a_mask_of_inference_mode_is_followed() -> None:
    with torch.inference_mode():
        mask = LIVE.clone()
    optimizer, parameter = make("OnebitAdam", None, mask)
    step(optimizer, parameter, 4)
    assert optimizer.report.masked == 2


REFUSED: dict[str, tuple[torch.Tensor, str]] = {
    "transposed": (
        torch.ones(4, 3),
        r"of parameter 'param.0': must be of shape \(3, 4\), got \(4, 3\)",
    ),
    "flat": (torch.ones(11), r"must be of shape \(3, 4\), got \(11,\)"),
    "complex": (
        torch.ones(3, 4, dtype=torch.complex64),
        "must be dense, real and not on the device meta, got torch.complex64",
    ),
    "sparse": (torch.ones(3, 4).to_sparse(), "must be dense, .*torch.sparse_coo"),
    "meta": (torch.ones(3, 4, device="meta"), "not on the device meta, .* on meta"),
}


@pytest.mark.parametrize("mask,text", REFUSED.values(), ids=REFUSED)
def test_masks_that_do_not_fit_are_named(mask: torch.Tensor, text: str) -> None:
    parameter = torch.nn.Parameter(torch.ones(3, 4))
    group: dict[str, Any] = {"params": [parameter], "exp_avg_mask": mask}
    named = rf"param_groups\[0\]\['exp_avg_mask'\].*{text}"
    with pytest.raises(InvalidArgument, match=named):
        thinwire.OnebitAdam([group], lr=0.1)
    group["exp_avg_mask"] = None
    optimizer = thinwire.OnebitAdam([group], lr=0.1)
    optimizer.param_groups[0]["exp_avg_mask"] = [mask]
    with pytest.raises(InvalidArgument, match=named):
        optimizer.step()
    assert torch.equal(parameter, torch.ones(3, 4))


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
    def body(comm: Any) -> list[str]:
        optimizer, parameter = make(kind, comm, first)
        step(optimizer, parameter, 4)
        other, own = make(kind, comm, then)
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
        of_ranks = run_local_ranks(2, body)
    for notes in of_ranks:
        said = "\n".join(notes) if through_files else caplog.text
        assert "exp_avg_mask" in said and "2 elements" in said


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"ZeroOneAdam"}))
@by_ranks(2)
def test_the_step_of_the_freeze_is_known_after_a_load(comm: Any, kind: str) -> None:
    optimizer, parameter = make(kind, comm, None)
    step(optimizer, parameter, 4)  # frozen after step 2
    other, own = make(kind, comm, None, freeze_step=3)
    own.data.copy_(parameter.data)
    assert other.freeze_step == 3
    other.load_state_dict(optimizer.state_dict())
    assert other.freeze_step == 2
    step(other, own, 1)
    assert other.report.phase == "compressed" and other.freeze_step == 2


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

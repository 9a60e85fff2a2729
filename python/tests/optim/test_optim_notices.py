# SPDX-License-Identifier: Apache-2.0
"""Lines that appear once in a run, in the log or as warnings. Their texts are tested in
tests/engine/run_notices_test.cpp."""

from __future__ import annotations

import logging
import re
import warnings
from pathlib import Path
from typing import Any

import optim_cases as cases
import pytest
import thinwire
import torch
from thinwire.comm import run_local_ranks


def one() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(33))]


@pytest.mark.quick
def test_a_freeze_beyond_the_run_is_warned_of_at_construction() -> None:
    def body(comm: Any) -> None:
        thinwire.OnebitAdam(one(), process_group=comm, freeze_step=9, total_steps=9)

    with pytest.warns(UserWarning, match="nothing will be compressed") as said:
        run_local_ranks(2, body)
    assert [w.filename for w in said] == [__file__]


def by_checkpoint(folder: Path, old: Any, new: Any) -> None:
    thinwire.save(folder, old)
    thinwire.load(folder, new)


def by_state_dict(_: Path, old: Any, new: Any) -> None:
    new.load_state_dict(old.state_dict())


@pytest.mark.quick
@pytest.mark.parametrize("carry", [by_checkpoint, by_state_dict])
@pytest.mark.parametrize("saved_after", [4, 5, 9])
@pytest.mark.parametrize("kind", ["OnebitAdam", "ZeroOneAdam"])
def test_the_freeze_is_announced_once_per_run_with_bytes(
    kind: str,
    saved_after: int,
    carry: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="thinwire")

    def body(comm: Any) -> tuple[Any, Any, list[int]]:
        net, other = cases.model(), cases.model()
        first = cases.make(kind, net.named_parameters(), comm)
        sent = []

        def note(optimizer: Any) -> None:
            sent.append(optimizer.report.bytes_sent)

        rank = comm.rank
        cases.train(net, first, range(saved_after), rank, lambda: note(first))
        second = cases.make(kind, other.named_parameters(), comm)
        carry(tmp_path / kind, first, second)
        rest = range(saved_after, 30)
        cases.train(other, second, rest, rank, lambda: note(second))
        return first.totals, second.totals, sent

    (first, second, sent), _ = run_local_ranks(2, body)
    lines = [line for line in caplog.messages if "from now on" in line]
    wanted = ["momentum in one bit"]
    if kind == "ZeroOneAdam":
        wanted.append("nothing in most steps")
    assert len(lines) == len(wanted)
    for line, text in zip(lines, wanted, strict=True):
        found = re.match(
            rf"step (\d+): from now on ranks exchange {text}.*; a step sent (\d+) bytes "
            r"before, this one (\d+)$",
            line,
        )
        assert found, line
        step, before, now = map(int, found.groups())
        assert (sent[step - 1], sent[0]) == (now, before)
    assert first.bytes_sent == sum(sent[:saved_after])
    assert second.bytes_sent == sum(sent)
    assert second.bytes_saved == 30 * sent[0] - sum(sent)


@pytest.mark.quick
def test_savings_follow_the_number_of_ranks(tmp_path: Path) -> None:
    """An exact step of W ranks sends (W - 1) / W of the same number of bytes."""

    def body(comm: Any, steps: range) -> tuple[int, int]:
        net = cases.model()
        optimizer = cases.make("OnebitAdam", net.named_parameters(), comm)
        thinwire.resume(tmp_path, optimizer)
        before, sent = optimizer.totals, optimizer.totals.bytes_sent
        cases.train(net, optimizer, steps, comm.rank)
        thinwire.save(tmp_path, optimizer, durable=False)
        sent = optimizer.totals.bytes_sent - before.bytes_sent
        saved = optimizer.totals.bytes_saved - before.bytes_saved
        return sent, sent + saved

    def run_on(ranks: int, *steps: int) -> tuple[int, int]:
        return run_local_ranks(ranks, lambda comm: body(comm, range(*steps)))[0]

    exact = run_on(2, 4)[0] // 4  # freeze_step is 4
    run_on(2, 4, 8)
    assert run_on(1, 8, 12) == (0, 0)
    assert run_on(4, 12, 14)[1] == 2 * (exact * 3 // 2)
    assert run_on(2, 14, 16)[1] == 2 * exact


@pytest.mark.quick
def test_both_causes_of_equal_gradients_are_named() -> None:
    def body(comm: Any) -> None:
        params = one()
        optimizer = cases.make("OnebitAdam", params, comm)
        params[0].grad = torch.ones(33)
        optimizer.step()

    with pytest.warns(
        UserWarning, match="same gradients.*read the same data.*ddp"
    ) as said:
        run_local_ranks(2, body)
    assert said[0].filename == __file__


@pytest.mark.quick
def test_totals_that_cannot_be_read_begin_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    optimizer = cases.make("OnebitAdam", one())
    state = optimizer.state_dict()
    state["thinwire"]["run"] = '{"announced": 3}'
    optimizer.load_state_dict(state)
    assert "the saved totals of the run cannot be read" in caplog.text
    assert optimizer.totals == thinwire.optim.RunTotals(0, 0)


@pytest.mark.quick
def test_low_rank_is_announced_once_and_a_run_without_it_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="thinwire")

    def body(comm: Any) -> list[str]:
        net = torch.nn.Linear(40, 40)

        def made(**options: Any) -> Any:
            return thinwire.AdamW(net.parameters(), process_group=comm, **options)

        low_rank = made(low_rank=2, first_steps=2)
        texts = []
        for _ in range(4):
            texts.append(repr(low_rank).splitlines()[-2])
            net(torch.ones(1, 40)).square().mean().backward()
            low_rank.step()
        resumed = made(low_rank=2, first_steps=2)
        resumed.load_state_dict(low_rank.state_dict())
        resumed.step()
        made(low_rank=2, total_steps=10)
        made(low_rank=2, total_steps=21)
        return [*texts, *(repr(made(bits=b)).splitlines()[-2] for b in (0, 8))]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        texts, _ = run_local_ranks(2, body)
    assert texts == [
        "0 steps, the next one in 4 bits, of low rank 2 after step 2",
        "1 steps, the next one in 4 bits, of low rank 2 after step 2",
        "2 steps, the next one of low rank 2",
        "3 steps, the next one of low rank 2",
        "0 steps, the next one exact",
        "0 steps, the next one in 8 bits",
    ]
    (line,) = [line for line in caplog.messages if "from now on" in line]
    assert re.match(
        r"step 3: from now on gradients travel as factors of low rank 2; a step sent "
        r"\d+ bytes before, this one \d+$",
        line,
    )
    (told,) = [str(w.message) for w in caught if "first_steps" in str(w.message)]
    assert "first_steps is 20, and the run has total_steps=10" in told

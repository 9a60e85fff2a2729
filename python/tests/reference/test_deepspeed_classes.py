# SPDX-License-Identifier: Apache-2.0
"""`deepspeed` semantics beside DeepSpeed's own classes, bit for bit.

THINWIRE_DEEPSPEED names their source; deepspeed_classes.py says how to get it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import ranks
import thinwire
import torch
from engines import same_bits
from reference import deepspeed_classes as reference
from thinwire.comm import run_local_ranks

pytestmark = pytest.mark.long
SCRIPT = ranks.TESTS.parents[1] / "examples" / "python" / "states_from_deepspeed.py"
STEPS = 12
ALONE = ("ZeroOneAdam", 1)
HALF = torch.ones(8, 4)
HALF[:4] = 0
MASKS = {"a": HALF}


@pytest.fixture(autouse=True)
def needs_the_source() -> None:
    if reference.source() is None:
        pytest.fail(f"THINWIRE_DEEPSPEED is not set: {reference.__doc__}")


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return same_bits(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize(
    "case", list(reference.cases()), ids=lambda case: reference.name_of(*case)
)
def test_the_kept_states_are_those_of_the_classes(case: Any) -> None:
    kept = torch.load(reference.STATES, weights_only=True)
    assert same(reference.saved(*case), kept[reference.name_of(*case)])


def engine_of(kind: str, options: dict[str, Any], masks: Any, comm: Any) -> Any:
    net = reference.Net()
    groups: Any = None
    if masks is not None:
        groups = [
            {"params": [p]} | ({"exp_avg_mask": masks[n].clone()} if n in masks else {})
            for n, p in net.named_parameters()
        ]
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": kind, "params": options},
        "thinwire": {"semantics": "deepspeed"},
    }
    return thinwire.initialize(
        model=net, model_parameters=groups, config=config, process_group=comm
    )[0]


# On one rank DeepSpeed's 0/1 Adam drops gradients, which is not reproduced.
@pytest.mark.parametrize(
    "kind,size",
    [(k, n) for k in reference.CLASSES for n in (1, 2, 3, 4) if (k, n) != ALONE],
)
@pytest.mark.parametrize("masks", [None, MASKS], ids=["plain", "mask and decay"])
def test_trajectories(kind: str, size: int, masks: Any) -> None:
    options = reference.OPTIONS[kind] | ({"weight_decay": 0.1} if masks else {})
    threads = reference.Ranks(size)

    def train(rank: int) -> list[torch.Tensor]:
        run = reference.Run(threads, classes[kind], options, masks=masks)
        values = []
        for number in range(1, STEPS):
            run.step(number, rank)
            values.append(run.values().clone())
        return values

    with reference.reference(threads) as classes:
        wanted = threads.run(train)

    def own(comm: Any) -> None:
        engine = engine_of(kind, options, masks, comm)
        for number in range(STEPS):  # the first one sets up
            engine.backward(engine(reference.gradients(number, comm.rank)))
            engine.step()
            if number > 0:
                now = reference.flat(engine.module)
                assert same_bits(now, wanted[comm.rank][number - 1]), number
        engine.destroy()

    run_local_ranks(size, own)


RELOADS: dict[str, tuple[str, dict[str, Any], Any, Any]] = {
    # saved, options of the run that loads it, masks of both
    "later freeze": ("after", {"freeze_step": 100}, None, None),
    "earlier freeze": ("before", {"freeze_step": 2}, None, None),
    "another rate": ("after", {"lr": 0.02}, None, None),
    "mask dropped": ("after", {}, MASKS, None),
    "mask added": ("after", {}, None, MASKS),
}


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", ["OneBitAdam", "OneBitLamb"])
@pytest.mark.parametrize("reload", RELOADS)
def test_a_state_that_another_run_loads(
    reload: str, kind: str, size: int, tmp_path: Path
) -> None:
    moment, changes, masks, masks_after = RELOADS[reload]
    steps = reference.MOMENTS[kind][moment]
    before, after = reference.OPTIONS[kind], reference.OPTIONS[kind] | changes
    threads = reference.Ranks(size)

    def train(rank: int) -> Any:
        run = reference.Run(threads, classes[kind], before, masks=masks)
        for number in range(1, steps):
            run.step(number, rank)
        state, values = threads.share((run.optimizer.state_dict(), run.values()))[0]
        if rank == 0:
            names = [*reference.SHAPES]
            module = {n: p.detach().clone() for n, p in run.net.named_parameters()}
            saved = {"module": module, "optimizer": state, "names": names}
            torch.save(saved, tmp_path / "mp_rank_00_model_states.pt")
        again = reference.Run(threads, classes[kind], after, masks=masks_after)
        if masks is not None and masks_after is None:  # one group instead of three
            again = reference.Run(threads, classes[kind], after, masks={})
        if masks is None and masks_after is not None:
            state = regrouped(state)
        again.load(values, state)
        for group in again.optimizer.param_groups:
            group["lr"] = after["lr"]
        for number in range(steps, steps + reference.MORE):
            again.step(number, rank)
        return again.values()

    with reference.reference(threads) as classes:
        wanted = threads.run(train)
    ended = ranks.program(
        *(sys.executable, SCRIPT, tmp_path / "mp_rank_00_model_states.pt"),
        *(tmp_path / "out", "--semantics", "deepspeed"),
    )
    assert ended.returncode == 0, ended.stderr

    def own(comm: Any) -> None:
        engine = engine_of(kind, after, masks_after, comm)
        thinwire.load(tmp_path / "out", engine)
        for number in range(steps, steps + reference.MORE):
            engine.backward(engine(reference.gradients(number, comm.rank)))
            engine.step()
        assert same_bits(reference.flat(engine.module), wanted[comm.rank])
        engine.destroy()

    run_local_ranks(size, own)


def regrouped(state: dict[str, Any]) -> dict[str, Any]:
    """Returns a state of one group as if each parameter had been a group."""
    (group,) = state["param_groups"]
    groups = [{**group, "params": [number]} for number in group["params"]]
    return {"state": state["state"], "param_groups": groups}

# SPDX-License-Identifier: Apache-2.0
"""States of thinwire.ddp_hook: the same ranks, other ranks, files, what does not fit. Its
thread ends with the wrapper, and not in a forked child."""

from __future__ import annotations

import copy
import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import hook_cases as cases
import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.optim.swa_utils import AveragedModel

BACKWARDS = 3


def run(module: Any, rank: int, steps: range) -> list[torch.Tensor]:
    """Returns this rank's gradients, or parts of them."""
    for step in steps:
        module.zero_grad()
        cases.loss_of(module, rank, step).backward()
    return [getattr(g, "to_local", g.clone)() for g in cases.gradients_of(module)]


def owed(state: dict[str, Any], ranks_now: int) -> dict[str, Any]:
    """Returns the mean of the workers' residuals plus the servers', which averages lack."""
    assert all(len(w) in (1, ranks_now) for w in state["worker"].values())
    servers = state.get("server", {})  # FSDP's hook has none
    return {
        name: worker.double().mean(0) + servers.get(name, torch.zeros(())).double()
        for name, worker in state["worker"].items()
    }


def save(kind: str, folder: str) -> list[bool]:
    """Writes states, and goes on from one with the same bits."""
    rank, size = cases.join()
    module, hook = cases.hooked(kind)
    run(module, rank, range(BACKWARDS))
    state, mean = hook.state_dict(), hook.state_dict(mean=True)
    if rank == 0:
        torch.save(state, f"{folder}/all")
        torch.save(mean, f"{folder}/mean")
    if not kind.startswith("fsdp"):
        dcp.save({"hook": mean}, checkpoint_id=f"{folder}/dcp")
    of_all, of_mean = owed(state, size), owed(mean, size)
    equal = [torch.allclose(of_all[name], of_mean[name], atol=1e-9) for name in of_all]
    want = run(module, rank, range(BACKWARDS, 2 * BACKWARDS))
    other, again = cases.hooked(kind)
    again.load_state_dict(state)
    found = run(other, rank, range(BACKWARDS, 2 * BACKWARDS))
    equal += map(torch.equal, found, want)
    if not kind.startswith("fsdp"):
        equal.append(int(again.state_dict()["backwards"]) == 2 * BACKWARDS)
    hook.close()
    again.close()
    dist.destroy_process_group()
    return equal


def load(kind: str, folder: str) -> dict[str, Any]:
    """Loads the states on another number of ranks, or on another path. A residual is kept
    or paid."""
    rank, size = cases.join()
    before = torch.load(f"{folder}/all")
    want = owed(before, len(next(iter(before["worker"].values()))))
    far = []
    for name in ("all", "mean", *(["dcp"] if not kind.startswith("fsdp") else [])):
        module, hook = cases.hooked(kind)
        if name == "dcp":
            state = hook.state_dict(mean=True)
            dcp.load({"hook": state}, checkpoint_id=f"{folder}/dcp")
        else:
            state = torch.load(f"{folder}/{name}")
        hook.load_state_dict(state)
        now = hook.state_dict()
        far += [float((owed(now, size)[key] - want[key]).abs().max()) for key in want]
        if size == 1 and not kind.startswith("fsdp"):
            gradients = run(module, rank, range(1))
            plain = cases.net()
            exact = run(plain, 0, range(1))
            for own, g, key in zip(gradients, exact, want, strict=True):
                far.append(float((own - g - want[key]).abs().max()))
            far += [float(v.abs().max()) for v in hook.state_dict()["worker"].values()]
        hook.close()
    dist.destroy_process_group()
    return {"far": max(far), "size": max(float(v.abs().max()) for v in want.values())}


@pytest.mark.parametrize(
    ("kind", "n", "others"),
    [
        ("ddp", 3, (2, 1)),
        ("ddp device", 3, (2, 1)),
        ("ddp", 2, (4,)),
        ("strided", 2, (1,)),
        ("low rank 2", 2, (3, 1)),
        ("low rank 3", 2, (3, 1)),  # saved after the last of the first steps
        pytest.param("fsdp", 2, (1, 3), marks=cases.needs_fsdp),
        pytest.param("fsdp device", 2, (3,), marks=cases.needs_fsdp),
    ],
)
def test_residuals_of_other_ranks_are_as_large(
    kind: str, n: int, others: tuple[int, ...], tmp_path: Path
) -> None:
    for equal in ranks.results(n, __file__, "save", kind, str(tmp_path)):
        assert all(equal)
    for m in others:
        for found in ranks.results(m, __file__, "load", kind, str(tmp_path)):
            assert found["far"] < 1e-6 * found["size"] + 1e-9
            assert found["size"] > 1e-4


def save_halfway(kind: str, folder: str) -> list[list[float]]:
    rank, _ = cases.join()
    module, hook = cases.hooked(kind)
    run(module, rank, range(BACKWARDS))
    state = hook.state_dict()
    if rank == 0:
        torch.save(state, f"{folder}/half")
    return go_on(module, hook, rank)


def load_halfway(kind: str, folder: str) -> list[list[float]]:
    rank, _ = cases.join()
    module, hook = cases.hooked(kind)
    hook.load_state_dict(torch.load(f"{folder}/half"))
    return go_on(module, hook, rank)


def go_on(module: Any, hook: Any, rank: int) -> list[list[float]]:
    found = run(module, rank, range(BACKWARDS, 2 * BACKWARDS))
    for part in ("worker", "server"):
        found += hook.state_dict().get(part, {}).values()
    hook.close()
    dist.destroy_process_group()
    return [g.flatten().tolist() for g in found]


@pytest.mark.parametrize("hosts", ["1", "2"])
@pytest.mark.parametrize("first, then", [("", " device"), (" device", "")])
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_a_state_of_one_path_continues_on_the_other_with_the_same_bits(
    wrapper: str, first: str, then: str, hosts: str, tmp_path: Path
) -> None:
    if wrapper == "fsdp" and (hosts == "2" or not cases.has_fsdp):
        pytest.skip("FSDP2 has no hosts")
    env = {"THINWIRE_RANKS_PER_HOST": "2"} if hosts == "2" else {}
    found = [
        ranks.results(
            4 if hosts == "2" else 3,
            __file__,
            function,
            wrapper + way,
            str(tmp_path),
            env=env,
        )
        for function, way in (("save_halfway", first), ("load_halfway", then))
    ]
    assert found[0] == found[1]


class Scaled(torch.nn.Module):
    """One of its parameters has no dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scale * x * self.weight).sum()


def restores_a_scalar(rank: int) -> bool:
    ddp = cases.wrapped(Scaled())
    hook = thinwire.ddp_hook(ddp)
    ddp(torch.tensor(rank + 2.0)).backward()
    state = hook.state_dict()
    hook.load_state_dict(state)
    again = hook.state_dict()
    hook.close()
    return all(
        torch.equal(state[part][name], again[part][name])
        for part in ("worker", "server")
        for name in ("scale", "weight")
    )


def misfits() -> tuple[list[str], bool]:
    """Texts that differ from what is expected, and whether a scalar is restored."""
    rank, _ = cases.join()
    _, hook = cases.hooked()
    good = hook.state_dict()
    name = "second.weight"

    def without(part: str) -> dict[str, Any]:
        return {part: {k: v for k, v in good[part].items() if k != name}}

    def reshaped(part: str) -> dict[str, Any]:
        return {part: {**good[part], name: torch.zeros(1, 2)}}

    def changed(part: str, change: Any) -> dict[str, Any]:
        return {part: {k: change(v) for k, v in good[part].items()}}

    others = []
    for text, bad in (
        ("'worker' must be a mapping, got NoneType", {"worker": None}),
        ("'worker' must be a mapping, got int", {"worker": 1}),
        ("'second.weight' is only in ddp", without("worker")),
        ("'second.weight' is only in ddp", without("server")),
        ("'second.weight' in the state's", reshaped("worker")),
        ("'second.weight' in the state's", reshaped("server")),
        *(
            ("'backwards' must be an integer in [0, 2^63)", {"backwards": value})
            for value in (None, -5, torch.tensor(torch.nan), 1.5, 2**70)
        ),
        ("has values not finite", changed("worker", lambda values: values * torch.nan)),
        ("has values not finite", changed("server", lambda values: values + torch.inf)),
        ("has values not finite", changed("worker", lambda v: v.double() + 1e300)),
        ("'worker' has values above 1e30", changed("worker", lambda v: 0 * v - 2e30)),
        ("'server' has values above 1e30", changed("server", lambda v: 0 * v + 2e30)),
        ("at least 1, got [0]", changed("worker", lambda values: values[:0])),
        ("a tensor of floats, got torch.int64", changed("worker", torch.Tensor.long)),
        ("a tensor of floats, got list", changed("server", torch.Tensor.tolist)),
        ("be dense, got torch.sparse_coo", changed("server", torch.Tensor.to_sparse)),
        ("the state must be a mapping, got NoneType", None),
    ):
        state = bad if bad is None else {**good, **bad}
        told = ranks.failure_of(lambda state=state: hook.load_state_dict(state))
        if not told.startswith("CorruptCheckpoint: ") or text not in told:
            others.append(f"{text}: {told}")
    for text, differs in (
        (f'"backwards 1" on rank 0 and "backwards {2**40}"', {"backwards": 1}),
        ("worker of 'first.weight'", changed("worker", lambda values: values + 1)),
    ):
        state = good if rank else {**good, **differs}
        state = {**state, "backwards": 2**40} if rank and "backwards" in text else state
        told = ranks.failure_of(lambda state=state: hook.load_state_dict(state))
        if "state must be the same on all ranks" not in told or text not in told:
            others.append(f"{text}: {told}")
    hook.load_state_dict(good)
    hook.close()
    is_restored = restores_a_scalar(rank)
    dist.destroy_process_group()
    return others, is_restored


def test_a_state_that_does_not_fit_is_refused() -> None:
    """And a parameter without dimensions is restored."""
    assert ranks.results(2, __file__, "misfits") == [[[], True]] * 2


def copies(folder: str) -> list[str]:
    """Returns what is wrong with copies of a wrapper whose hook has residuals."""
    rank, _ = cases.join()
    ddp, hook = cases.hooked()
    run(ddp, rank, range(1))
    torch.save(ddp, f"{folder}/{rank}")
    wrong = []
    for name, copied in (
        ("deepcopy", copy.deepcopy(ddp)),
        ("AveragedModel", AveragedModel(ddp).module),
        ("torch.save", torch.load(f"{folder}/{rank}", weights_only=False)),
    ):
        exact = run(cases.wrapped(cases.net()), rank, range(1, 2))
        if not all(map(torch.equal, run(copied, rank, range(1, 2)), exact)):
            wrong.append(name)
        again = thinwire.ddp_hook(copied)
        if all(map(torch.equal, run(copied, rank, range(1, 2)), exact)):
            wrong.append(f"{name} with a hook")
        again.close()
    told = ranks.failure_of(lambda: copy.copy(hook))
    if "save its state_dict()" not in told:
        wrong.append(told)
    run(ddp, rank, range(1, 2))
    hook.close()
    dist.destroy_process_group()
    return wrong


def test_a_copy_of_the_wrapper_has_no_hook(tmp_path: Path) -> None:
    assert ranks.results(2, __file__, "copies", str(tmp_path)) == [[], []]


def exchanging() -> int:
    return sum(thread.name == "thinwire.hook" for thread in threading.enumerate())


def lives() -> dict[str, Any]:
    rank, _ = cases.join()
    ddp, hook = cases.hooked()
    cases.loss_of(ddp, rank, 0).backward()
    found: dict[str, Any] = {"alive": exchanging()}
    child = os.fork()
    if child == 0:
        try:
            hook.state_dict()
        except thinwire.FailedPrecondition as error:
            os._exit(7 if "has forked" in str(error) else 1)
        os._exit(2)
    found["child"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    cases.loss_of(ddp, rank, 1).backward()
    del ddp, hook
    gc.collect()
    end = time.monotonic() + 10
    while exchanging() and time.monotonic() < end:
        time.sleep(0.01)
    found["after"] = exchanging()
    # The parameters are free for an optimizer, or another hook, of a new wrapper.
    net = cases.net()
    thinwire.ddp_hook(cases.wrapped(net)).close()
    thinwire.OnebitAdam(net.parameters()).close()
    for exact_steps in (0, 5):
        closed = cases.wrapped(cases.net())
        thinwire.ddp_hook(closed, exact_steps=exact_steps).close()
        with pytest.raises(thinwire.FailedPrecondition, match="is closed"):
            cases.loss_of(closed, rank, 2).backward()
    return found


@pytest.mark.parametrize("world", [1, 2])
def test_the_thread_ends_with_the_wrapper(world: int) -> None:
    for found in ranks.results(world, __file__, "lives"):
        assert found == {"alive": 1, "child": 7, "after": 0}

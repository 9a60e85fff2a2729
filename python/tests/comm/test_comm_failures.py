# SPDX-License-Identifier: Apache-2.0
"""Ranks that end, fail, die, are silent or do something else: who learns what, and when.

Limits are far apart: collectives may take LONG where a failure must be noticed at once, and all
ranks must have ended after SECONDS, or they are ended and the test fails.
"""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hook_cases
import native
import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from thinwire import _core, comm
from thinwire._agreement import agreed
from thinwire.comm.calls import in_call, names_of_calls

LONG = 300.0
SHORT = 2.0
SECONDS = 40.0


def start(timeout: float = LONG) -> tuple[_core.Communicator, native.Training]:
    group = comm.communicator_for(timeout=timeout)
    return group, native.Training(group).steps(6)


def watch(group: _core.Communicator, training: native.Training) -> list[str]:
    """Returns the errors of further steps, of the next call, and of one after close()."""
    texts = [ranks.failure_of(lambda: training.steps(100))]
    texts.append(ranks.failure_of(group.barrier))
    training.optimizer.close()
    group.close()
    texts.append(ranks.failure_of(group.barrier))
    return texts


def close_late_or_never() -> str:
    """One group is closed after destroy_process_group(), another one is left open."""
    comm.init_distributed("gloo")
    left_open = start()
    group, training = start()
    dist.destroy_process_group()
    training.steps(3)
    training.optimizer.close()
    group.close()
    group.close()
    return left_open[1].steps(1).phase


def end_rank(rank: int, how: str) -> list[str]:
    comm.init_distributed("gloo")
    group, training = start()
    if group.rank == rank:
        if how == "raise":
            raise ValueError("data loader broke")
        if how == "exit":
            sys.exit(5)
        os.kill(os.getpid(), signal.SIGKILL)
    return watch(group, training)


def test_groups_outlive_destroy_process_group_and_may_stay_open() -> None:
    got = ranks.call(2, __file__, "close_late_or_never", seconds=SECONDS)
    assert [rank.value for rank in ranks.succeed(got)] == ["compressed"] * 2
    assert [rank.stderr for rank in got] == ["", ""]


def check_others(got: list[ranks.Rank], gone: int, told: str) -> None:
    """One of the others at least heard it from the rank that is gone; all others of it."""
    others = [rank for rank in got if rank.rank != gone]
    texts = []
    for rank in others:
        assert rank.value is not None, ranks.describe(got)
        failure, after, closed = rank.value
        assert failure.startswith("CommFailure: "), failure
        assert told in failure
        assert "communicator already failed" in after
        assert told in after
        assert closed == "FailedPrecondition: this communicator is closed"
        texts.append(failure)
    assert any(f": rank {gone} {told}" in text for text in texts), texts


@pytest.mark.parametrize(
    ("rank", "how", "code", "told"),
    [
        (1, "raise", 1, "gave up: ValueError: data loader broke"),
        (1, "exit", 5, "has left or died: "),
        (1, "kill", -signal.SIGKILL, "has left or died: "),
        (0, "kill", -signal.SIGKILL, "has left or died: "),
    ],
)
def test_all_others_hear_of_a_rank_that_ends(
    rank: int, how: str, code: int, told: str
) -> None:
    """Also of rank 0, which holds the store of torch.distributed, where reasons are."""
    store = "caller" if rank else "rank 0"
    got = ranks.call(3, __file__, "end_rank", rank, how, seconds=SECONDS, store=store)
    assert got[rank].returncode == code, ranks.describe(got)
    check_others(got, rank, told)


def die_within_a_message() -> str:
    """Rank 0 is stopped, so that rank 1 can send a part of its message only."""
    comm.init_distributed("gloo")
    group = comm.communicator_for(timeout=LONG)
    peer = int(group.gather_texts(str(os.getpid()))[0])
    if group.rank == 1:
        time.sleep(0.5)  # Rank 0 waits for the message by then.
        os.kill(peer, signal.SIGSTOP)
        subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {peer}"])
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
    values = torch.ones(16 << 20)
    return ranks.failure_of(
        lambda: group.all_gather(values, torch.empty(2 * values.numel()))
    )


def test_a_rank_that_is_killed_while_it_sends() -> None:
    got = ranks.call(2, __file__, "die_within_a_message", seconds=SECONDS)
    assert got[1].returncode == -signal.SIGKILL
    assert "rank 1 has left or died" in str(got[0].value), ranks.describe(got)


def go_wrong(case: str) -> list[str]:
    """One of the cases that processes survive, with a group of its own."""
    if case == "another layout":
        group = comm.communicator_for(timeout=LONG)
        shapes = [("w", [5000 - group.rank])]
        text = ranks.failure_of(lambda: native.Training(group, shapes))
        values = torch.ones(3)
        group.all_reduce(values)  # nothing has happened to the group
        group.close()
        return [text, str(values.tolist())]
    if case == "no group on rank 1" and dist.get_rank() == 1:
        time.sleep(1.5 * SHORT)
        return []
    if case == "no group on rank 1":
        return [ranks.failure_of(lambda: comm.communicator_for(timeout=SHORT))]
    group, training = start(SHORT)
    is_other = group.rank == 1
    calls: dict[str, tuple[Any, Any]] = {
        "another call": (
            lambda: group.all_to_all(torch.ones(2), torch.empty(2)),
            lambda: group.all_gather(torch.ones(1), torch.empty(2)),
        ),
        "another size": (
            lambda: group.all_reduce(torch.ones(100)),
            lambda: group.all_reduce(torch.ones(200)),
        ),
    }
    if case in calls:
        return [ranks.failure_of(calls[case][is_other])]
    if is_other and case == "silent":
        time.sleep(1.5 * SHORT)
    if is_other and case == "give up":
        group.give_up("no more data")
    return watch(group, training)


def all_cases() -> dict[str, list[str]]:
    comm.init_distributed("gloo")
    calls = ("another layout", "silent", "another call", "another size")
    return {c: go_wrong(c) for c in (*calls, "give up", "no group on rank 1")}


def test_ranks_that_do_not_fit_together() -> None:
    zero, one = ranks.results(2, __file__, "all_cases", seconds=SECONDS)
    layout = "the same on all ranks"
    for texts in (zero, one):
        text, sums = texts["another layout"]
        assert layout in text and "w 5000" in text and "w 4999" in text
        assert sums == "[2.0, 2.0, 2.0]"
    late = "timed out waiting for rank 1"
    assert zero["silent"][0].endswith(f": {late}")
    assert "rank 0 gave up: " in one["silent"][0] and late in one["silent"][0]
    for case, told in (
        (
            "another call",
            "rank 0 is in all_to_all of 4 bytes and rank 1 is in all_gather",
        ),
        (
            "another size",
            "rank 0 is in all_reduce of 200 bytes and rank 1 is in all_red",
        ),
    ):
        for texts in (zero, one):
            assert told in texts[case][0], (case, texts)
    assert zero["give up"][0].endswith(": rank 1 gave up: no more data")
    assert "no more data" in one["give up"][0]
    assert zero["no group on rank 1"] == [
        "CommFailure: timed out waiting for rank 1 to make the group"
    ]


def give_up_inside_an_exchange() -> list[Any]:
    """Rank 2 is late, so that 0 and 1 are in a barrier when another thread of 1 gives up."""
    comm.init_distributed("gloo")
    group = comm.communicator_for(timeout=LONG)
    group.barrier()
    began = time.monotonic()
    if group.rank == 1:
        threading.Timer(0.5, lambda: group.give_up("no more data")).start()
    if group.rank == 2:
        time.sleep(1.5)
        began = time.monotonic()
    text = ranks.failure_of(group.barrier)
    return [text, time.monotonic() - began]


def test_give_up_ends_the_own_exchange_and_those_of_peers_within_a_second() -> None:
    name = "give_up_inside_an_exchange"
    found = ranks.results(3, __file__, name, seconds=SECONDS)
    texts, seconds = zip(*found, strict=True)
    assert max(seconds[:2]) < 1.5 and seconds[2] < 1, seconds
    assert ": rank 1 gave up: no more data" in texts[0] + texts[2], texts
    assert all("no more data" in text for text in texts), texts


@pytest.mark.quick
def test_other_calls_whose_messages_fit_are_noticed() -> None:
    """A checksum of require_same() is as long as a size of gather_texts()."""

    def call(group: _core.Communicator) -> str:
        if group.rank == 0:
            return ranks.failure_of(lambda: group.gather_texts("text"))
        return ranks.failure_of(lambda: group.require_same("text", "other"))

    for text in thinwire.run_local_ranks(2, call):
        assert "the ranks are in different collective calls" in text


@pytest.mark.quick
@pytest.mark.parametrize("is_bare", [True, False])
def test_calls_without_a_name_are_told_apart_from_others(is_bare: bool) -> None:
    def call(group: _core.Communicator) -> str:
        if group.rank == 0:
            with in_call("save()"):
                return ranks.failure_of(lambda: agreed(group, list))
        if is_bare:
            group.gather_texts("no line break")
            return ranks.failure_of(group.barrier)
        return ranks.failure_of(lambda: agreed(group, list))

    for text in thinwire.run_local_ranks(2, call):
        assert text.startswith("CommFailure: ")
        assert "rank 0 is in save() and rank 1 is in another call;" in text


@pytest.mark.quick
def test_threads_without_a_name_are_left_out() -> None:
    with in_call("backward()"), concurrent.futures.ThreadPoolExecutor() as others:
        assert others.submit(in_call("")(names_of_calls)).result() == "backward()"


def wait_for_rank_2() -> list[str]:
    """Waits in two threads. The second begins later, and the first ends it."""
    comm.init_distributed("gloo")
    group = comm.communicator_for(timeout=SHORT)
    part = group.split(0)
    assert part is not None
    part.barrier()
    if group.rank == 2:
        time.sleep(1.5 * SHORT)
        return []
    texts: list[str] = []

    def wait_later() -> None:
        time.sleep(SHORT / 4)
        texts.append(ranks.failure_of(part.barrier))

    thread = threading.Thread(target=wait_later)
    thread.start()
    texts.append(ranks.failure_of(group.barrier))
    thread.join()
    return texts


def test_only_the_rank_that_hangs_is_named() -> None:
    """Gloo lets nobody wait twice for a message, as if it had not come."""
    of_ranks = ranks.results(5, __file__, "wait_for_rank_2", seconds=SECONDS)
    for rank in (0, 1, 3, 4):
        for text in of_ranks[rank]:
            assert text.endswith("timed out waiting for rank 2"), of_ranks


def in_another_call(call: str, folder: str) -> str:
    """Rank 0 alone makes a collective call, while rank 1 trains. Returns the error."""
    is_first = dist.get_rank() == 0
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    if call == "state_dict()":
        ddp, hook = hook_cases.hooked()
        backward = hook_cases.loss_of(ddp, 0, 0).backward
        return ranks.failure_of(hook.state_dict if is_first else backward)
    if call == "save_checkpoint()":
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        }
        engine = thinwire.initialize(model=model, config=config)[0]
        if is_first:
            return ranks.failure_of(lambda: engine.save_checkpoint(folder))
        loss = engine(torch.ones(4, 3)).square().mean()
        return ranks.failure_of(lambda: engine.backward(loss))
    optimizer = thinwire.ZeroOneAdam(
        model.parameters(), var_freeze_step=1, local_step_scaler=2
    )

    def train() -> None:
        for _ in range(10):
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()

    if call == "set_max_grad_norm()":
        if is_first:
            return ranks.failure_of(lambda: optimizer.set_max_grad_norm(1.0))
        ones, group = [torch.nn.Parameter(torch.ones(1))], optimizer._comm
        return ranks.failure_of(lambda: thinwire.AdamW(ones, process_group=group))
    train()  # parameters differ then
    if is_first:
        bodies: dict[str, Callable[[], Any]] = {
            "save()": lambda: thinwire.save(folder, optimizer),
            "evaluation()": lambda: optimizer.evaluation().__enter__(),
            "broadcast_buffers()": lambda: comm.broadcast_buffers(model),
        }
        return ranks.failure_of(bodies[call.split("|")[0]])
    if call == "save()|resume()":
        return ranks.failure_of(lambda: thinwire.resume(folder, optimizer))
    return ranks.failure_of(train)


# Maps rank 0's call to the others'. The last one leaves a group half made.
OTHER_CALLS = {
    "set_max_grad_norm()": "the constructor of an optimizer",
    "save()": "step()",
    "evaluation()": "step()",
    "save_checkpoint()": "backward()",
    "state_dict()": "backward()",
    "save()|resume()": "resume()",
    "broadcast_buffers()": "step()",
}


def in_other_calls(folder: str) -> list[str]:
    comm.init_distributed("gloo")
    return [in_another_call(call, folder) for call in OTHER_CALLS]


def test_ranks_in_different_calls_hear_which_ones(tmp_path: Path) -> None:
    env = {"THINWIRE_TIMEOUT": "8s"}
    for texts in ranks.results(2, __file__, "in_other_calls", str(tmp_path), env=env):
        for (call, other), text in zip(OTHER_CALLS.items(), texts, strict=True):
            where = f"rank 0 is in {call.split('|')[0]} and rank 1 is in {other}"
            assert where in text, (call, text)


def mpi_cases() -> dict[str, list[str]]:
    return {case: go_wrong(case) for case in ("give up", "silent")}


def test_ranks_of_mpi4py_that_do_not_fit_together() -> None:
    ranks.require("mpi", ranks.has_mpi(), "no mpirun or mpi4py")
    env = {"THINWIRE_COMM": "mpi4py"}
    zero, one = ranks.results(
        2, __file__, "mpi_cases", launcher="mpirun", env=env, seconds=SECONDS
    )
    assert zero["give up"][0].endswith(": rank 1 gave up: no more data")
    assert "this rank gave up: no more data" in one["give up"][0] or (
        "communicator already failed: no more data" in one["give up"][0]
    )
    assert zero["silent"][0].endswith(": timed out waiting for rank 1")
    assert "timed out waiting for rank 1" in one["silent"][0]


def hang_or_raise(what: str) -> None:
    group, training = start(SHORT if what == "hang" else LONG)
    if group.rank == 1 and what == "hang":
        time.sleep(SECONDS)
    if group.rank == 1:
        raise ValueError("data loader broke")
    training.steps(1)


@pytest.mark.parametrize(
    "what,told",
    [
        ("hang", ["timed out waiting for rank 1", "MPI_Abort ends all"]),
        ("raise", ["rank 1 gave up: ValueError: data loader broke"]),
    ],
)
def test_programs_of_mpi4py_end_whatever_one_rank_does(
    what: str, told: list[str]
) -> None:
    ranks.require("mpi", ranks.has_mpi(), "no mpirun or mpi4py")
    env = {"THINWIRE_COMM": "mpi4py"}
    function = ("hang_or_raise", what)
    got = ranks.call(
        2, __file__, *function, launcher="mpirun", env=env, seconds=SECONDS
    )
    assert not got[0].timed_out and got[0].returncode != 0, ranks.describe(got)
    text = "".join(rank.stderr for rank in got)
    assert all(part in text for part in told), text


class Last:
    """Tells when the interpreter ends, kills the process then, and waits for whoever
    is inside of its store."""

    def __init__(self, process: int) -> None:
        self.process, self.began = process, time.monotonic()

    def __del__(
        self,
        now: Any = time.monotonic,
        write: Any = os.write,
        kill: Any = os.kill,
        sleep: Any = time.sleep,
    ) -> None:
        write(1, f" {now() - self.began}".encode())
        kill(self.process, 9)
        sleep(0.5)


def leave_after_an_error(kind: str) -> None:
    """Rank 0, which has the store, is stopped. Rank 1 catches the error and leaves."""
    comm.init_distributed("gloo")
    group, training = start(SHORT)
    if kind == "hook":
        ddp, _ = hook_cases.hooked()
    process = int(group.gather_texts(str(os.getpid()))[0])
    for step in range(4):
        if step == 3 and group.rank == 0:
            subprocess.Popen(["sh", "-c", f"sleep {SECONDS / 2}; kill -9 {process}"])
            os.kill(process, signal.SIGSTOP)
        if kind == "hook":
            text = ranks.failure_of(hook_cases.loss_of(ddp, 0, step).backward)
        else:
            text = ranks.failure_of(lambda: training.steps(1))
    print(text.splitlines()[0], end="")
    sys.last = Last(process)  # type: ignore[attr-defined]
    sys.exit(7)


@pytest.mark.parametrize("kind", ["steps", "hook"])
def test_a_rank_that_has_named_an_error_leaves_with_its_own_exit_code(
    kind: str,
) -> None:
    """A thread that looks into the store would come back while the interpreter ends."""
    env = {"THINWIRE_TIMEOUT": f"{SHORT:g}s"}
    _, one = ranks.call(
        2, __file__, "leave_after_an_error", kind, env=env, store="rank 0"
    )
    assert one.returncode == 7, ranks.describe([one])
    error, seconds = one.stdout.rsplit(" ", 1)
    assert "timed out waiting for rank 0" in error
    assert float(seconds) < 4


def wait_for_nobody() -> list[Any]:
    begin = time.monotonic()
    try:
        comm.init_distributed("gloo")
    except Exception as error:  # noqa: BLE001  whatever torch raises
        return [type(error).__name__, time.monotonic() - begin]
    return []


@pytest.mark.parametrize("value", ["2s", "abc"])
def test_the_start_waits_as_long_as_the_variable_says(value: str) -> None:
    env = {"THINWIRE_TIMEOUT": value, "WORLD_SIZE": "2"}
    (alone,) = ranks.call(1, __file__, "wait_for_nobody", seconds=SECONDS, env=env)
    assert alone.value is not None, ranks.describe([alone])
    kind, seconds = alone.value
    assert kind == ("CommFailure" if value == "2s" else "InvalidArgument")
    assert seconds < 20

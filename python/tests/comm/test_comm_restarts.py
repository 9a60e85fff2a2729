# SPDX-License-Identifier: Apache-2.0
"""torchrun starts a run again by itself: the ranks find each other, and the run its checkpoint."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import optim_cases as cases
import pytest
import ranks
from thinwire import CommFailure
from thinwire.comm.attempt import store_of_attempt
from torch.distributed import HashStore, Store

LAUNCHES: dict[str, Callable[[], list[str]]] = {
    "static": lambda: ["--master-port", str(ranks.free_port())],
    "c10d": lambda: ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"],
}


def undisturbed() -> str:
    def body(communicator: cases._core.Communicator) -> str:
        net = cases.model()
        optimizer = cases.make("OnebitAdam", net.named_parameters(), communicator)
        cases.train(net, optimizer, range(1, 31), communicator.rank)
        return cases.bits(net)

    return str(cases.on_ranks(2, body)[0])


def output_of(
    launch: Callable[[], list[str]], restarts: int, *script: object, seconds: float
) -> str:
    """Returns the output of two ranks that torchrun restarts up to so many times."""
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    counts = ["--max-restarts", str(restarts), "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*torchrun, *counts, *launch(), *map(str, script)],
        env=ranks.environment(),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_a_run_whose_rank_is_killed_ends_by_itself(
    launch: Callable[[], list[str]], tmp_path: Path
) -> None:
    script = ranks.TESTS / "scripts" / "restarted.py"
    printed = output_of(launch, 1, script, tmp_path, seconds=100)
    assert printed == f"steps 11 to 30: {undisturbed()}\n"


def test_a_run_whose_rank_is_killed_three_times_ends_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    resume = ranks.TESTS.parents[1] / "examples" / "python" / "resume.py"
    killed = ranks.TESTS / "scripts" / "killed_thrice.py"
    outputs = []
    for name, script in (("calm", []), ("killed", [killed, tmp_path])):
        run = (*script, resume, "--out", tmp_path / name)
        printed = output_of(LAUNCHES["static"], 3, *run, seconds=200)
        outputs.append(printed.splitlines())
    assert outputs[1][:-1] == [f"resumes after step {step}" for step in (100, 100, 200)]
    # The same loss, to its last digit.
    assert outputs[1][-1].split()[-1] == outputs[0][-1].split()[-1]


def attempts_of(store: Store, ranks_there: list[int], size: int) -> list[Store]:
    """Returns the store of each of these ranks, in their order."""
    got: dict[int, Store] = {}

    def run(rank: int) -> None:
        got[rank] = store_of_attempt(store, rank, size, timedelta(seconds=20))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks_there]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [got[rank] for rank in ranks_there]


@pytest.mark.quick
def test_every_attempt_has_a_store_of_its_own() -> None:
    store = HashStore()
    store.set("thinwire/here/2", "of a rank that died before it heard an answer")
    first = attempts_of(store, [0, 1, 2], 3)
    first[0].set("address", "old")
    assert first[1].get("address") == first[2].get("address") == b"old"
    second = attempts_of(store, [2, 1, 0], 3)
    assert not second[0].check(["address"])
    second[0].set("address", "new")
    assert second[1].get("address") == second[2].get("address") == b"new"
    assert first[0].get("address") == b"old"


@pytest.mark.quick
def test_a_rank_that_does_not_come_is_named() -> None:
    store = HashStore()
    with pytest.raises(CommFailure, match="timed out waiting for ranks 1, 2$"):
        store_of_attempt(store, 0, 3, timedelta(seconds=0.1))
    with pytest.raises(CommFailure, match="no answer from rank 0"):
        store_of_attempt(store, 1, 3, timedelta(seconds=0.1))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_run_continues_with_fewer_machines(tmp_path: Path) -> None:
    """Two launchers of two ranks each stand for machines. One of them is lost."""
    slow = ranks.TESTS / "scripts" / "slow_steps.py"
    resume = ranks.TESTS.parents[1] / "examples" / "python" / "resume.py"
    counts = ["--nnodes", "1:2", "--nproc-per-node", "2", "--max-restarts", "3"]
    end_point = f"localhost:{ranks.free_port()}"
    notices = "join_timeout=60,last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3"
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", end_point]
    out = tmp_path / "run"
    script = [slow, resume, "--steps", 500, "--out", out]
    command = [sys.executable, "-m", "torch.distributed.run", *counts, *meeting]
    command += ["--rdzv-conf", notices, *map(str, script)]

    def machine(name: str) -> subprocess.Popen[str]:
        log = (tmp_path / name).open("w")
        return subprocess.Popen(
            command, env=ranks.environment(), stdout=log, stderr=log, text=True
        )

    first = machine("first")
    time.sleep(2)  # The first one has the store of the end point.
    second = machine("second")
    try:
        while not (out / "step-0000000200").exists() and first.poll() is None:
            time.sleep(0.1)
        children = f"/proc/{second.pid}/task/{second.pid}/children"
        for process in [second.pid, *map(int, Path(children).read_text().split())]:
            os.kill(process, signal.SIGKILL)
        assert first.wait(200) == 0, (tmp_path / "first").read_text()
    finally:
        for launcher in (first, second):
            launcher.terminate()
    printed = (tmp_path / "first").read_text()
    assert "4 ranks have the boot id" in printed  # of both machines, at first
    assert "resumes after step " in printed
    assert re.search(r"steps \d+01 to 500: loss ", printed)

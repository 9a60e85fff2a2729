# SPDX-License-Identifier: Apache-2.0
"""torchrun starts a run again by itself: the ranks find each other, and the run its checkpoint."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import ranks
from thinwire import CommFailure
from thinwire.comm import run_local_ranks
from thinwire.comm.launch import store_of_attempt
from torch.distributed import HashStore, Store

LAUNCHES: dict[str, Callable[[], list[str]]] = {
    "static": lambda: ["--master-port", str(ranks.free_port())],
    "c10d": lambda: ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"],
}


ROOT = ranks.TESTS.parents[1]
ELASTIC = ROOT / "examples" / "python" / "elastic.py"
KILLED_THRICE = ranks.TESTS / "scripts" / "killed_thrice.py"


def output_of(
    launch: Callable[[], list[str]], restarts: int, *script: object, seconds: float
) -> str:
    """Returns the output of two ranks that torchrun restarts up to so many times."""
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    counts = ["--max-restarts", str(restarts), "--nproc-per-node", "2"]
    ended = ranks.program(*torchrun, *counts, *launch(), *script, seconds=seconds)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of elastic.py, of which no rank is killed."""
    run = (ELASTIC, "--out", tmp_path_factory.mktemp("calm"))
    return output_of(LAUNCHES["static"], 0, *run, seconds=100).splitlines()


def check_killed_thrice(printed: str, calm: list[str]) -> list[str]:
    """Checks the losses of a run of elastic.py that killed_thrice.py disturbed. Returns
    the lines that say how it started."""
    lines = printed.splitlines()
    assert len(lines) > len(calm)
    # All losses, to their last digit; after the kills some are printed twice.
    assert {line for line in lines if "resumes" not in line} == set(calm[1:])
    assert lines[-1] == calm[-1] == "done: 300 steps"
    starts = [line for line in lines if "resumes" in line]
    froms = [line.partition(", ")[2] for line in starts]
    assert froms[0] == "resumes from nothing"
    assert froms[1:] == [
        f"resumes after step {step} of world size 2" for step in (100, 100, 200)
    ]
    return starts


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_a_run_whose_rank_is_killed_three_times_ends_as_if_nothing_had_happened(
    launch: Callable[[], list[str]], tmp_path: Path, calm: list[str]
) -> None:
    run = (KILLED_THRICE, tmp_path, ELASTIC, "--out", tmp_path / "run")
    printed = output_of(launch, 3, *run, seconds=200)
    starts = check_killed_thrice(printed, calm)
    assert [line.split(":")[0] for line in starts] == [
        f"restart {number}" for number in range(4)
    ]


def test_a_loop_around_mpirun_ends_a_run_whose_rank_is_killed_three_times(
    tmp_path: Path, calm: list[str]
) -> None:
    """The loop is that of the guide, with other numbers, programs and folders."""
    ranks.require("mpi", ranks.has_mpi(), "there is no mpirun or no mpi4py")
    guide = (ROOT / "docs" / "guide" / "restarts.md").read_text()
    (loop,) = re.findall(r"^```sh\n(for attempt[^`]*)^```", guide, re.MULTILINE)
    run = [sys.executable, KILLED_THRICE, tmp_path, ELASTIC, "--out", tmp_path / "run"]
    for there, here in {
        "-np 8 --hostfile hosts": "-np 2",
        "MASTER_ADDR=host0": "MASTER_ADDR=127.0.0.1",
        "python elastic.py --out /shared/run": " ".join(map(str, run)),
    }.items():
        assert there in loop
        loop = loop.replace(there, here)
    port = str(ranks.free_port())
    ended = ranks.program("bash", "-c", loop, **ranks.MPI, MASTER_PORT=port)
    assert ended.returncode == 0, ended.stderr
    starts = check_killed_thrice(ended.stdout, calm)
    assert {line.split(":")[0] for line in starts} == {"start"}


def attempt(store: Store) -> list[Store]:
    """Returns the store of each of three ranks."""
    seconds = timedelta(seconds=20)
    return run_local_ranks(3, lambda c: store_of_attempt(store, c.rank, 3, seconds))


@pytest.mark.quick
def test_every_attempt_has_its_own_store() -> None:
    store = HashStore()
    store.set("thinwire/here/2", "of a rank that died before it heard an answer")
    first = attempt(store)
    first[0].set("address", "old")
    assert first[1].get("address") == first[2].get("address") == b"old"
    second = attempt(store)
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
    counts = ["--nnodes", "1:2", "--nproc-per-node", "2", "--max-restarts", "3"]
    end_point = f"localhost:{ranks.free_port()}"
    notices = "join_timeout=60,last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3"
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", end_point]
    out = tmp_path / "run"
    script = [slow, ELASTIC, "--steps", 500, "--out", out]
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
    assert re.search(r"restart \d: world size 2, resumes after step \d+00 of", printed)
    assert "\ndone: 500 steps\n" in printed

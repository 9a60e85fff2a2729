# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes, for tests: started with torchrun's or mpirun's variables, watched, ended.

    for value in results(2, __file__, "train", 12, seconds=30):
        assert value == ...           # what train(12) returned on that rank, through JSON
    ranks = run(2, "script.py", "--steps", "12")
    assert ranks[1].returncode == -9 and "rank 1 has left" in ranks[0].stderr

Ranks of call() are forked from one process, which has imported torch; those of run() are
processes of their own. The store of torch.distributed is held by the caller, as torchrun's
agent holds it, so no port can be taken by somebody else in between, and rank 0 may die as
well as any other.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


@dataclass(frozen=True)
class Rank:
    """How one rank ended. Under mpirun `returncode` and `seconds` are the whole job's."""

    rank: int
    returncode: int
    """-9 for SIGKILL and so on, as subprocess has it."""
    timed_out: bool
    stdout: str
    stderr: str
    value: Any
    """The result of a function; None if it did not return."""
    seconds: float


def run(
    n: int,
    script: str | Path,
    *arguments: object,
    seconds: float = 60,
    env: dict[str, str] | None = None,
    store: str = "caller",
) -> list[Rank]:
    """`script` on n ranks with torchrun's variables; all are ended after `seconds`.

    store: "caller", or "rank 0", which then listens on a port that was free a moment ago.
    """
    return _torchrun(n, [str(script), *map(str, arguments)], seconds, env, store)


def call(
    n: int,
    file: str | Path,
    name: str,
    *arguments: object,
    seconds: float = 60,
    env: dict[str, str] | None = None,
    store: str = "caller",
    launcher: str = "torchrun",
) -> list[Rank]:
    """The function `name` of `file` on n ranks; arguments and result go through JSON.

    launcher: "torchrun" (its variables, not its agent) or "mpirun".
    """
    command = [str(file), name, json.dumps(arguments)]
    if launcher == "mpirun":
        return _mpirun(n, [__file__, *command], seconds, env)
    return _torchrun(n, command, seconds, env, store, forks=True)


def results(n: int, file: str | Path, name: str, *given: object, **options: Any) -> Any:
    """Returns what the function of call() returned on each rank. All ended with 0."""
    return [rank.value for rank in succeed(call(n, file, name, *given, **options))]


def succeed(ranks: list[Rank]) -> list[Rank]:
    """`ranks`, all of which must have ended with 0; else an AssertionError with their output."""
    if any(rank.returncode for rank in ranks):
        raise AssertionError(describe(ranks))
    return ranks


def failure_of(action: Callable[[], Any]) -> str:
    """ "CommFailure: text" of what `action` raises; "" if it returns."""
    try:
        action()
    except Exception as error:  # noqa: BLE001  the test compares it
        return f"{type(error).__name__}: {error}"
    return ""


def describe(ranks: list[Rank]) -> str:
    """Returns the output of all ranks, for messages."""
    return "\n".join(
        f"---- rank {r.rank}: exit code {r.returncode} after {r.seconds:.1f} s"
        f"{' (ended at the limit)' if r.timed_out else ''}\n{r.stdout}{r.stderr}"
        for r in ranks
    )


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """This process's, with its thinwire and the tests on PYTHONPATH, one thread per rank."""
    package = importlib.util.find_spec("thinwire")
    assert package and package.origin
    of_package = str(Path(package.origin).parents[1])
    paths = [of_package, str(TESTS), os.environ.get("PYTHONPATH", "")]
    joined = os.pathsep.join(path for path in paths if path)
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    return os.environ | threads | {"PYTHONPATH": joined} | (extra or {})


def program(
    *command: object, seconds: float = 110, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, whatever its exit code, with these variables beside."""
    return subprocess.run(
        [*map(str, command)],
        env=environment(variables),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def has_mpi() -> bool:
    return bool(shutil.which("mpirun") and importlib.util.find_spec("mpi4py"))


def require(name: str, is_there: bool, why: str) -> None:
    """Skips the test that needs `name`; where THINWIRE_REQUIRE lists it, fails it."""
    import pytest

    if is_there:
        return
    if name in os.environ.get("THINWIRE_REQUIRE", "").split(","):
        pytest.fail(f"{why}, which THINWIRE_REQUIRE={name} asks for")
    pytest.skip(why)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class _Forked:
    """A process that the server has forked: as much of Popen as _wait() needs."""

    def __init__(self, n: int, command: list[str], env: dict[str, str], folder: Path):
        self._pipe = _server()
        env = env | {"RANKS_FOLDER": str(folder)}
        request = json.dumps([[str(n), *command], env]).encode() + b"\n"
        self._pipe.stdin.write(request)  # type: ignore[union-attr]
        self.pid = self._line()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._pipe.stdout], [], [], 0)[0]:
            self.returncode = self._line()
        return self.returncode

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def wait(self, timeout: float | None = None) -> None:
        select.select([self._pipe.stdout], [], [], timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("ranks", timeout or 0)

    def _line(self) -> int:
        return int(self._pipe.stdout.readline())  # type: ignore[union-attr]


@functools.cache
def _server() -> subprocess.Popen[bytes]:
    """Importing torch takes seconds, so one process does it for all calls of a session.
    It ends with its stdin. Its pipes have no buffers, because poll() selects on them."""
    pipe = subprocess.PIPE
    command = [sys.executable, __file__, "--serve"]
    return subprocess.Popen(
        command, 0, stdin=pipe, stdout=pipe, env=environment(), start_new_session=True
    )


def _serve() -> None:
    """Returns in a child for each line of stdin, with its arguments and environment."""
    # torch's optimizers import dynamo in their first step.
    import torch._dynamo
    import torch.distributed  # noqa: F401

    while line := sys.stdin.buffer.readline():
        child = os.fork()
        if child == 0:
            os.setsid()
            sys.argv[1:], env = json.loads(line)
            os.environ.clear()
            os.environ.update(env)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            _redirect(Path(env["RANKS_FOLDER"]), "forks")
            return
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)


def _torchrun(
    n: int,
    command: list[str],
    seconds: float,
    env: dict[str, str] | None,
    store: str,
    forks: bool = False,
) -> list[Rank]:
    shared = environment({"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n)})
    shared["MASTER_ADDR"] = "127.0.0.1"
    held = None
    if store == "caller":
        from torch.distributed import TCPStore

        held = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        shared |= {
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
    shared["MASTER_PORT"] = str(held.port if held else free_port())
    shared |= env or {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if forks:
            return _wait([_Forked(n, command, shared, folder)], folder, n, seconds)
        processes = []
        for r in range(n):
            own = {"RANK": str(r), "LOCAL_RANK": str(r)} | shared
            processes.append(_start([sys.executable, *command], own, folder, r))
        return _wait(processes, folder, n, seconds)


def _mpirun(
    n: int, command: list[str], seconds: float, env: dict[str, str] | None
) -> list[Rank]:
    with tempfile.TemporaryDirectory() as folder:
        process = _start(
            ["mpirun", "-np", str(n), sys.executable, *command],
            environment(MPI | (env or {})),
            Path(folder),
            0,
        )
        return _wait([process], Path(folder), n, seconds)


def _start(
    command: list[str], env: dict[str, str], folder: Path, rank: int
) -> subprocess.Popen[bytes]:
    env = env | {"RANKS_FOLDER": str(folder)}
    with (
        open(folder / f"stdout.{rank}", "wb") as out,
        open(folder / f"stderr.{rank}", "wb") as err,
    ):
        return subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


Processes = Sequence[subprocess.Popen[bytes] | _Forked]


def _wait(processes: Processes, folder: Path, n: int, seconds: float) -> list[Rank]:
    begin = time.monotonic()
    ended: dict[int, float] = {}
    killed: set[int] = set()
    try:
        while len(ended) < len(processes) and time.monotonic() < begin + seconds:
            time.sleep(0.01)
            for i, process in enumerate(processes):
                if i not in ended and process.poll() is not None:
                    ended[i] = time.monotonic() - begin
    finally:
        killed |= {i for i, process in enumerate(processes) if process.poll() is None}
        _kill([processes[i] for i in killed])
    ranks = []
    for r in range(n):
        p = min(r, len(processes) - 1)
        own = _read(folder / f"ended.{r}")  # of a forked one
        code, end = json.loads(own) if own else (processes[p].returncode, ended.get(p))
        ranks.append(
            Rank(
                rank=r,
                returncode=code,
                timed_out=p in killed and not own,
                stdout=_read(folder / f"stdout.{r}"),
                stderr=_read(folder / f"stderr.{r}"),
                value=json.loads(_read(folder / f"value.{r}") or "null"),
                seconds=seconds if end is None else end,
            )
        )
    return ranks


def _kill(processes: Processes) -> None:
    """SIGTERM first: mpirun then ends its ranks, which are not of its process group."""
    for process in processes:
        process.terminate()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it has forked
        process.wait()


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _fork(n: int, folder: Path) -> None:
    """Returns n times, in n children."""
    begin = time.monotonic()
    rank_of: dict[int, int] = {}
    for rank in range(n):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            _redirect(folder, rank)
            return
        rank_of[child] = rank
    while rank_of:
        child, status = os.wait()
        end = [os.waitstatus_to_exitcode(status), time.monotonic() - begin]
        (folder / f"ended.{rank_of.pop(child)}").write_text(json.dumps(end))
    os._exit(0)


def _redirect(folder: Path, rank: int | str) -> None:
    for fd, stream in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / f"{stream}.{rank}", os.O_WRONLY | os.O_CREAT), fd)


def _main() -> None:
    """FILE NAME ARGUMENTS, the last as JSON: a rank; or --serve, which forks them."""
    is_forked = sys.argv[1] == "--serve"
    if is_forked:
        _serve()
    folder = Path(os.environ["RANKS_FOLDER"])
    if is_forked:
        _fork(int(sys.argv.pop(1)), folder)
    file, name, arguments = sys.argv[1:]
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
    if rank is None:
        rank = os.environ["RANK"]
    elif rank != "0":  # rank 0's output is mpirun's own
        _redirect(folder, rank)
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    value = getattr(module, name)(*json.loads(arguments))
    partial = folder / f"partial.{rank}"
    partial.write_text(json.dumps(value))
    partial.rename(folder / f"value.{rank}")
    if "fence" in sys.modules:
        # Ending right after a backward on a device, torch itself aborts now and then.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    _main()

# SPDX-License-Identifier: Apache-2.0
"""Programs on the emulated hosts, with one or several ranks each."""

import contextlib
import json
import os
import queue
import subprocess
import threading
from pathlib import Path

from links import FIRST_ADDRESS, NETWORK

HERE = Path(__file__).resolve().parent
ANSWER_SECONDS = 300
LINES_OF_A_LOG = 15


class Failure(Exception):
    """Its text has what went wrong, in a line, and the end of the log."""


def environment(place, port):
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "THINWIRE_COMM": "mpi",
        # The hosts have this machine's boot id, which would make them one host.
        "THINWIRE_RANKS_PER_HOST": str(place.ranks_per_host),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "GLOO_SOCKET_IFNAME": "eth0",
        "MASTER_ADDR": f"{NETWORK}.{FIRST_ADDRESS + place.hosts[0]}",
        "MASTER_PORT": str(port),
    }


def launcher(place):
    """A daemon on each host starts its ranks; none is bound to a core."""
    slots = [f"host{host}:{place.ranks_per_host}" for host in place.hosts]
    return [
        *("mpirun", "--bind-to", "none", "--host", ",".join(slots)),
        *("--mca", "plm_rsh_agent", str(HERE / "on_host")),
        *("--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp"),
        *("--mca", "btl_tcp_if_include", f"{NETWORK}.0/24"),
    ]


def end_of(log):
    return "\n".join(log.read_text(errors="replace").splitlines()[-LINES_OF_A_LOG:])


def run_to_its_end(place, command, log):
    with open(log, "w") as file:
        done = subprocess.run(
            launcher(place) + command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(place, 29_400),
            check=False,
        )
    if done.returncode != 0:
        raise Failure(f"{command[0]} ended with {done.returncode}\n{end_of(log)}")


class Program:
    """A program that trains what a line per rank says, and answers with one line.
    Between lines it reads from a pipe, and the cores are free."""

    def __init__(self, name, place, command, folder):
        self.name = name
        self.log = folder / f"{name}_{place.ranks}_{place.ranks_per_host}.log"
        self.answers = queue.Queue()
        self.paths = [folder / f"{name}.{rank}" for rank in range(place.ranks)]
        for path in self.paths:
            path.unlink(missing_ok=True)
            os.mkfifo(path)
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                launcher(place) + command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(place, 29_500 + place.ranks),
                text=True,
            )
        # Opened for reading too, so that opening does not wait for the other end.
        self.pipes = [os.open(path, os.O_RDWR) for path in self.paths]
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.answers.put(json.loads(line))
        self.answers.put(None)

    def ask(self, variant, steps):
        for pipe in self.pipes:
            os.write(pipe, f"{variant} {steps}\n".encode())
        try:
            answer = self.answers.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise Failure(f"{self.name}: {variant}: silent for 5 minutes") from None
        if answer is None:
            raise Failure(f"{self.name}: {variant}: it ended\n{end_of(self.log)}")
        return answer

    def close(self):
        for pipe in self.pipes:
            os.close(pipe)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        for path in self.paths:
            path.unlink()

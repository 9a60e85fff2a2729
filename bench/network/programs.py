# SPDX-License-Identifier: Apache-2.0
"""Programs with several ranks, on emulated hosts or on this machine."""

import contextlib
import json
import os
import queue
import socket
import subprocess
import threading

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
        "MASTER_PORT": str(port),
        **place.variables(),
    }


class Here:
    """Ranks on this machine. They end with the thread that has started them."""

    ranks_per_host = 1

    def __init__(self, ranks):
        self.ranks = ranks

    def launcher(self):
        self_only = ("--mca", "btl", "self,vader", "--mca", "pml", "ob1")
        ends = ("setpriv", "--pdeathsig", "TERM")
        return [*ends, "mpirun", "--oversubscribe", *self_only, "-np", str(self.ranks)]

    def variables(self):
        return {
            "MASTER_ADDR": "127.0.0.1",
            "OMPI_MCA_hwloc_base_binding_policy": "none",
        }


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def end_of(log):
    return "\n".join(log.read_text(errors="replace").splitlines()[-LINES_OF_A_LOG:])


def run_to_its_end(place, command, log, port=29_400):
    with open(log, "w") as file:
        done = subprocess.run(
            place.launcher() + command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(place, port),
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
                place.launcher() + command,
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

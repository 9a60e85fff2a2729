# SPDX-License-Identifier: Apache-2.0
"""misuse_test.py MPIEXEC PROGRAM: runs PROGRAM on three ranks once per mistake.

It judges what each rank says and that each rank ends. Open MPI 4.1.4's mpiexec may
crash or hang in PMIx_server_finalize after it has ended a job of which one rank waits
in MPI_Finalize. That is no rank's fault, so such an mpiexec is ended here.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS = 3
SECONDS_FOR_RANKS = 60
SECONDS_TO_END = 10
# What the ranks other than 1 say, and what rank 1 says. If a rank makes one step too
# many, each rank may hear of it first from any other.
EXPECTED = {
    "ends": ("rank 1 has left.*drop_last", "^ended$"),
    "goes_on": ("rank [0-2] sent.*drop_last", "^error: "),
    "throws": ("gave up: my own cause", "cancel_backward.*my own cause"),
    "clips": (
        "gave up: step: the gradient of 'a'",
        "step: the gradient of 'a'.*gradient_clipping",
    ),
}


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended stays a zombie until it is reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait(seconds: float, condition) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def run(mpiexec: str, program: str, mistake: str, folder: Path) -> list[str]:
    """Runs one job and returns what is wrong with it."""
    said = [folder / f"said.{rank}" for rank in range(RANKS)]
    output = folder / "output"
    with output.open("wb") as stream:
        launcher = subprocess.Popen(
            [mpiexec, "-np", str(RANKS), program, mistake, folder],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    begin = time.monotonic()
    wait(
        SECONDS_FOR_RANKS,
        lambda: launcher.poll() is not None or all(f.exists() for f in said),
    )
    wait(SECONDS_TO_END, lambda: launcher.poll() is not None)
    wrong = []
    pids = []
    for rank, file in enumerate(said):
        if not file.exists():
            wrong.append(f"rank {rank} said nothing")
            continue
        pid, text = file.read_text().split("\n", 1)
        pids.append(int(pid))
        if not re.search(EXPECTED[mistake][rank == 1], text):
            wrong.append(f"rank {rank} said: {text}")
    wait(SECONDS_TO_END, lambda: not any(map(is_alive, pids)))
    wrong += [f"process {pid} has not ended" for pid in pids if is_alive(pid)]
    if launcher.poll() is None:
        print(f"{mistake}: mpiexec did not end after its ranks; it is ended")
        launcher.kill()
    elif launcher.returncode == 0:
        wrong.append("mpiexec ended with 0")
    launcher.wait()
    print(f"{mistake}: {time.monotonic() - begin:.1f} s")
    if wrong:
        wrong.append(output.read_text(errors="replace"))
    return wrong


def main() -> int:
    wrong = []
    for mistake in EXPECTED:
        with tempfile.TemporaryDirectory() as folder:
            for line in run(sys.argv[1], sys.argv[2], mistake, Path(folder)):
                wrong.append(f"{mistake}: {line}")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

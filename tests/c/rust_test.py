# SPDX-License-Identifier: Apache-2.0
"""examples/rust/train.rs trains two ranks over libthinwire_c.so.

usage: rust_test.py TRAIN.RS FOLDER_OF_LIBRARY
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77


def main():
    source, libraries = sys.argv[1:]
    if not shutil.which("rustc"):
        print("rustc is missing: apt-get install rustc")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/train"
        flags = ["-D", "warnings", "-L", f"native={libraries}", "-o", program]
        subprocess.run(["rustc", "--edition=2021", "-O", *flags, source], check=True)
        env = os.environ | {"LD_LIBRARY_PATH": libraries}
        done = subprocess.run(
            [program], env=env, stdout=subprocess.PIPE, text=True, check=True
        )
    print(done.stdout, end="")
    steps = re.findall(
        r"^step (\d+): (\w+), first number (\S+), (\d+) bytes sent$",
        done.stdout,
        re.MULTILINE,
    )
    if [int(step[0]) for step in steps] != list(range(50, 401, 50)):
        print("a step is missing")
        return 1
    exact, last = steps[0], steps[-1]
    works = (
        exact[1] == "exact"
        and last[1] == "compressed"
        and 20 * int(last[3]) < int(exact[3])
        and abs(float(last[2]) - 1) < 0.05
    )
    return 0 if works else 1


if __name__ == "__main__":
    sys.exit(main())

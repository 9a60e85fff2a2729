#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saves of train_gpt on disks that lose their power, and on one that is too small.

usage: train_gpt_disks_test.py PROGRAM MPIEXEC [TEST...]

ext4 in a file is shut down without a flush: what was not synced is gone, as after
a power cut. Needs root and the right to mount; without them tests are skipped, or
fail if THINWIRE_REQUIRE names mount. THINWIRE_TEST_LONG=1 takes forty cuts.
"""

import contextlib
import fcntl
import os
import random
import shutil
import struct
import subprocess
import sys
import time

import train_gpt_runs
from mpi_launcher import run
from train_gpt_runs import QUIET, TINY, Runs, batch

# linux/fs.h, and the flag that drops the journal's unwritten part too.
FS_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
FLAGS = (
    f"--optimizer zero_one_adam --save-every 3 --steps 60 --ranks 2 {batch(2)} "
    f"{TINY} {QUIET}"
)
CUTS = 40 if "THINWIRE_TEST_LONG" in os.environ else 3


class TrainGpt(Runs):
    def setUp(self):
        super().setUp()
        self.place = self.folder / "mounted"
        self.place.mkdir()

    def mount(self, *how):
        done = run("mount", *how, str(self.place))
        if done.returncode == 0:
            self.addCleanup(run, "umount", str(self.place))
            return
        if "mount" in os.environ.get("THINWIRE_REQUIRE", ""):
            self.fail(f"THINWIRE_REQUIRE asks for mount: {done.stderr}")
        self.skipTest(f"needs root and the right to mount: {done.stderr.strip()}")

    def unmount(self):
        # Whoever had files open may take a moment to go.
        for _ in range(50):
            if run("umount", str(self.place)).returncode == 0:
                return
            time.sleep(0.1)
        self.fail("the disk stays in use")

    def start(self, name, extra=""):
        out = f"--out {self.folder / name} {extra}".split()
        return self.begin(["--data", str(self.text), *FLAGS.split(), *out])

    def complete(self, name, extra=""):
        errors = self.end_of(self.start(name, extra), seconds=300)
        return self.summary_of(self.folder / name)["params_checksum"], errors

    def cut_power(self):
        place = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(place, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(place)

    def test_power_cuts(self):
        """At any time, also while it saves or begins: the run goes on from what
        the disk has kept, to the same end."""
        empty = self.folder / "empty"
        with empty.open("wb") as file:
            file.truncate(64 << 20)
        if run("mkfs.ext4", "-q", str(empty)).returncode != 0:
            self.skipTest("needs mkfs.ext4")
        whole, _ = self.complete("whole")
        checkpoints = self.place / "checkpoints"
        on_disk = f"--set checkpoint.root={checkpoints} --resume auto"
        moments = random.Random(11)
        resumed = 0
        for cut in range(CUTS):
            disk, after = self.folder / f"disk{cut}", self.folder / f"after{cut}"
            shutil.copyfile(empty, disk)
            self.mount("-o", "loop", str(disk))
            process = self.start(f"cut{cut}", on_disk)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=0.2 + moments.random())
            self.cut_power()
            process.kill()
            process.communicate(timeout=60)
            # Names are never used twice: a mount may live on in another namespace.
            shutil.copyfile(disk, after)
            self.unmount()
            self.mount("-o", "loop", str(after))
            with self.subTest(cut=cut):
                checksum, errors = self.complete(f"end{cut}", on_disk)
                self.assertEqual(checksum, whole, errors)
                resumed += "resumed_from" in self.summary_of(self.folder / f"end{cut}")
            self.unmount()
            disk.unlink()
            after.unlink()
        self.assertGreater(resumed, 0, "no cut came after a save")

    def test_a_disk_that_is_too_small(self):
        """For any checkpoint, which is found out before it is written, and for
        more than a few: those stay."""
        whole, _ = self.complete("whole")
        for size, holds_some in (("1m", False), ("20m", True)):
            with self.subTest(size=size):
                self.mount("-t", "tmpfs", "-o", f"size={size}", "none")
                checkpoints = self.place / "checkpoints"
                where = f"--set checkpoint.root={checkpoints} --resume auto"
                where += " --set checkpoint.keep_last=0"
                errors = self.end_of(self.start(size, where), code=1, seconds=300)
                self.assertRegex(
                    errors,
                    "a checkpoint needs [0-9]+ bytes and a margin of [0-9]+ .*, [0-9]+ are",
                )
                self.assertEqual(any(checkpoints.glob("step-*")), holds_some)
                if holds_some:
                    elsewhere = f"--resume {self.newest(checkpoints)}"
                    checksum, errors = self.complete(
                        "end",
                        f"{elsewhere} --set checkpoint.root={self.folder / 'elsewhere'}",
                    )
                    self.assertEqual(checksum, whole, errors)
                self.unmount()

    @staticmethod
    def newest(checkpoints):
        return max(checkpoints.glob("step-*"), key=lambda path: int(path.name[5:]))


if __name__ == "__main__":
    sys.exit(train_gpt_runs.main(sys.modules[__name__], __doc__))

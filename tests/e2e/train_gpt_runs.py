# SPDX-License-Identifier: Apache-2.0
"""What tests of train_gpt have in common: its runs, and their main().

MPIEXEC is empty where the build has no MPI; then tests that need it are
skipped, or fail if THINWIRE_REQUIRE names mpi.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import mpi_launcher
from mpi_launcher import launcher, run

PROGRAM = ""
QUIET = "--set train_gpt.quiet=true"


def size(layers, width, heads, context):
    """Returns the flags for a model of this size."""
    return (
        f"--set train_gpt.layers={layers} --set train_gpt.width={width} "
        f"--set train_gpt.heads={heads} --set train_gpt.context={context}"
    )


def batch(sequences):
    """Returns the flags for so many sequences per rank and backward."""
    return f"--set train_micro_batch_size_per_gpu={sequences}"


def freeze(step):
    """Returns the flags for the last exact step of 1-bit optimizers."""
    return f"--set optimizer.params.freeze_step={step}"


TINY = size(1, 32, 2, 16)
# The warm-up of the learning rate ends at step 10, and so do exact steps.
SMALL = f"--steps 30 --set train_gpt.warmup_steps=10 {TINY}"


class Runs(unittest.TestCase):
    SECONDS = 300  # that a run may take

    def setUp(self):
        self.folder = Path(
            self.enterContext(tempfile.TemporaryDirectory(prefix="thinwire_train_gpt_"))
        )
        self.text = self.folder / "text.txt"
        words = random.Random(1)
        self.text.write_text(
            "".join(
                words.choice(["thin ", "wire ", "one ", "bit\n"]) for _ in range(9000)
            )
        )

    def enterContext(self, context):  # unittest has it from Python 3.11 on
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        return stack.enter_context(context)

    def run_program(self, arguments, code=0, ranks=0, environment=None, wrapper=()):
        """Runs it, under mpirun where `ranks` are given, and returns the end, which must
        have this code; None: any."""
        env = {**os.environ, "THINWIRE_TIMEOUT": "60s", **(environment or {})}
        command = [*launcher(ranks), *wrapper, PROGRAM, *arguments]
        done = run(*command, timeout=self.SECONDS, env=env)
        self.assertIn(code, (done.returncode, None), done.stderr)
        return done

    def begin(self, arguments, ranks=0, timeout="60s", **how):
        """Starts it, and kills it if the test leaves it behind."""
        process = subprocess.Popen(
            [*launcher(ranks), PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "THINWIRE_TIMEOUT": timeout},
            **how,
        )
        self.addCleanup(process.kill)
        return process

    def end_of(self, process, code=0, seconds=60):
        """Waits for its end, which must have this code, and returns its errors."""
        _, errors = process.communicate(timeout=seconds)
        self.assertEqual(process.returncode, code, errors)
        return errors

    def train(self, name, extra, **how):
        """A small training run that must succeed; returns its summary."""
        out = self.folder / name
        arguments = ["--data", str(self.text), "--out", str(out)]
        flags = f"{SMALL} {QUIET} {extra}".split()
        self.run_program([*arguments, *flags], **how)
        return self.summary_of(out)

    def summary_of(self, out):
        return json.loads((out / "summary.json").read_text())

    def metrics(self, name):
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def step_rows(self, name):
        """Those of steps, without those of validations."""
        return [row for row in self.metrics(name) if "loss" in row]

    def check_equal_runs(self, *summaries):
        """They have trained the same, as threads or as processes."""
        for key in ("ranks", "params_checksum", "final_val_loss"):
            for summary in summaries:
                self.assertEqual(summary[key], summaries[0][key], key)

    def check_fails(self, arguments, code, *parts, **how):
        done = self.run_program(arguments, code, **how)
        self.assertEqual(done.stdout, "")
        for part in parts:
            self.assertIn(part, done.stderr)
        return done


def main(module, usage):
    """Runs the tests of `module` that the command line names, or all."""
    global PROGRAM
    if len(sys.argv) < 3:
        print(usage, file=sys.stderr)
        return 2
    PROGRAM, mpi_launcher.MPIEXEC = sys.argv[1:3]
    names = [f"TrainGpt.{name}" for name in sys.argv[3:]]
    loader = unittest.defaultTestLoader
    suite = (
        loader.loadTestsFromNames(names, module)
        if names
        else loader.loadTestsFromModule(module)
    )
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    if not result.wasSuccessful():
        return 1
    return 77 if len(result.skipped) == result.testsRun else 0

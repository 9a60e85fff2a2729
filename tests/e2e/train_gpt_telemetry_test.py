#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs train_gpt with telemetry: what each line says, with each optimizer.

usage: train_gpt_telemetry_test.py PROGRAM MPIEXEC [TEST...]
"""

import json
import re
import sys
from pathlib import Path

import train_gpt_runs
from mpi_launcher import needs_mpi
from train_gpt_runs import Runs, freeze

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "telemetry.md"
STEPS, RESIDUAL_EVERY = 12, 4
FROZEN_AT_3 = ["exact"] * 3 + ["compressed"] * (STEPS - 3)
# Of the guide's table: those that are objects, and what is in them.
OBJECTS = ("seconds", "memory")
NOT_ALWAYS = "residual_ratio"
OF_LAMB = "lamb_coeffs"
OF_WARMUP = "bits"
OF_SYNCS = {"drift", "rho"}  # those of an outer loop


def documented():
    """The keys of the guide's table, and those of objects among them."""
    keys, inner = set(), {}
    for line in GUIDE.read_text().splitlines():
        cells = line.split("|")
        if len(cells) < 4 or "`" not in cells[1]:
            continue
        own = re.findall("`([a-z_]+)`", cells[1])
        keys.update(own)
        if own[0] in OBJECTS:
            inner[own[0]] = set(re.findall("`([a-z_]+)`", cells[2]))
    return keys, inner


class TrainGpt(Runs):
    def lines_of(self, name, extra):
        """The lines of a run's telemetry, which rank 0 alone writes."""
        path = self.folder / f"{name}.jsonl"
        flags = f"--steps {STEPS} --set train_gpt.warmup_steps=2 {extra}"
        flags += f" --set telemetry.path={path}"
        self.train(name, flags, ranks=2)
        self.assertEqual([*self.folder.glob(f"{name}.jsonl*")], [path])
        return [json.loads(line) for line in path.read_text().splitlines()]

    def check_lines(self, lines, phases, warmup_bits=0, syncs=()):
        """Every documented key is on every line, and no other."""
        keys, inner = documented()
        self.assertEqual([line["step"] for line in lines], [*range(1, STEPS + 1)])
        self.assertEqual([line["phase"] for line in lines], phases)
        for line in lines:
            has_bits = warmup_bits and line["phase"] == "exact"
            own = keys - {OF_LAMB}
            own -= set() if has_bits else {OF_WARMUP}
            own -= set() if line["step"] in syncs else OF_SYNCS
            self.assertEqual(set(line) | {NOT_ALWAYS}, own)
            self.assertEqual(line.get(OF_WARMUP, 0), warmup_bits if has_bits else 0)
            for name, its in inner.items():
                self.assertEqual(set(line[name]), its)
                self.assertTrue(all(value >= 0 for value in line[name].values()))
            self.assertIs(line["applied"], True)
            self.assertGreater(line["grad_norm"], 0)
            self.assertTrue(0 <= line["overlap"] <= 1)
            is_local = line["phase"] == "local"
            self.assertEqual(line["bytes_sent"] == 0, is_local)
            self.assertEqual(line["messages"] == 0, is_local)
            self.assertLessEqual(line["bytes_between_hosts"], line["bytes_sent"])
            self.assertGreater(line["memory"]["parameters"], 0)

    def check(self, name, extra, warmup_bits=0, syncs=()):
        ratios = f"--set telemetry.residual_every={RESIDUAL_EVERY}"
        lines = self.lines_of(name, f"{extra} {ratios}")
        self.check_lines(lines, FROZEN_AT_3, warmup_bits, syncs)
        for line in lines:
            wanted = (
                line["phase"] == "compressed" and line["step"] % RESIDUAL_EVERY == 0
            )
            self.assertEqual(NOT_ALWAYS in line, wanted, line)
            if wanted:
                self.assertGreater(line[NOT_ALWAYS], 0)

    @needs_mpi
    def test_onebit_adam(self):
        onebit = f"--optimizer onebit_adam {freeze(3)}"
        for name, extra, warmup_bits in (
            ("onebit", onebit, 0),
            ("warm", f"{onebit} --set warmup_bits=8", 8),
            ("lean", f"--optimizer lean_onebit_adam {freeze(3)}", 0),
        ):
            with self.subTest(name):
                self.check(name, extra, warmup_bits)

    # The interval between syncs is 1 for a while, then 2; validations, after
    # every step here but some, make a local step's ranks equal outside of it.
    @needs_mpi
    def test_zero_one_adam(self):
        stages = "--set optimizer.params.var_freeze_step=4 --set optimizer.params.local_step_clipper=2"
        lines = self.lines_of("zero_one", f"--optimizer zero_one_adam {stages}")
        phases = [line["phase"] for line in lines]
        self.assertEqual(phases[:4], ["exact"] * 4)
        self.assertEqual(set(phases[4:]), {"compressed", "local"})
        self.check_lines(lines, phases)

    @needs_mpi
    def test_outer_loop(self):
        extra = "--optimizer adam --set outer.sync_every=1 --set outer.warmup_steps=3"
        self.check("outer", extra, warmup_bits=8, syncs=range(4, STEPS + 1))


if __name__ == "__main__":
    sys.exit(train_gpt_runs.main(sys.modules[__name__], __doc__))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/network/run without root: what it refuses, how it ends, and what it makes
of results that are there already."""

import argparse
import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path
from xml.etree import ElementTree

BENCH = Path(__file__).resolve().parents[2] / "bench" / "network"
sys.path.insert(0, str(BENCH))
RUN, PUBLISH = BENCH / "run", BENCH / "publish"
SECONDS = {  # per step in three rounds at 100 Mbit/s
    "ddp_fp32": (2.0, 2.2, 3.0),
    "adam": (2.0, 2.1, 2.4),
    "onebit_adam": (0.1, 0.11, 0.3),
    "onebit_adam_warm8": (0.5, 0.6, 0.7),
    "zero_one_adam": (0.08, 0.08, 0.08),
    "python_onebit_adam": (0.12, 0.14, 0.3),
}
BYTES = {"ddp_fp32": 24e6, "adam": 24e6, "onebit_adam": 8e5}
BYTES |= {"python_onebit_adam": 7e5, "computing": 0}
UNLIMITED = {"computing": (0.05, 0.06, 0.05), "onebit_adam": (0.06, 0.06, 0.06)}
# Per step in three rounds at 100 Mbit/s, two hosts of two ranks.
ON_HOSTS = {
    "exchange_flat": (0.15, 0.14, 0.2),
    "exchange_by_host": (0.075, 0.077, 0.11),
}


def run(*command, **how):
    """Runs it to its end, whatever its exit code."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **how)


def entry(name, variant, number, seconds, mbit=None, ranks_per_host=1):
    made = {
        "set": name,
        "variant": variant,
        "round": number,
        "ranks": 2 * ranks_per_host,
        "ranks_per_host": ranks_per_host,
        "mbit": mbit,
        "steps": 2 if variant in ("ddp_fp32", "adam") else 4,
        "seconds": seconds[number],
        "bytes": BYTES.get(variant, 1e6),
        "params": 6_597_120,
    }
    if not variant.startswith("ddp"):
        made.update(backward=0.04, update=0.06, waiting=0.05)
    return made


def rounds(name):
    for number in range(3):
        for variant, seconds in UNLIMITED.items():
            yield entry(name, variant, number, seconds)
        for mbit in (100, 1000, 10_000):
            for variant, seconds in SECONDS.items():
                yield entry(name, variant, number, seconds, mbit)


def rounds_on_hosts():
    for number in range(3):
        yield entry("hosts", "computing", number, UNLIMITED["computing"], None, 2)
        for variant, seconds in ON_HOSTS.items():
            yield entry("hosts", variant, number, seconds, 100, 2)


# The peer's loss after 400 steps, in every seed.
TARGET = 1.80
KINDS = {
    "ddp_fp32": "e" * 400,
    "onebit_adam": "e" * 100 + "c" * 300,
    "onebit_adam_warm8": "e" * 100 + "c" * 300,
    "zero_one_adam": "e" * 52 + "c" * 172 + "l" * 176,
}


def run_of(variant, seed, crossing, continued=0, **setting):
    """400 steps and those by which it was continued. The loss falls by 0.001 per step,
    and passes the target at a step between two validations. A step sends 1 MB."""
    last = 400 + continued
    return {
        "model": "8x256",
        "ranks": 2,
        "sequences": 1,
        **setting,
        "variant": variant,
        "seed": seed,
        "steps": 400,
        "losses": [
            (s, TARGET + (crossing - s) / 1000, s * 1e6)
            for s in range(50, last + 1, 50)
        ],
        "kinds": KINDS[variant] + "c" * continued,
    }


def losses():
    for seed, crossing in ((1, 360), (2, 380)):
        yield run_of("ddp_fp32", seed, 400)
        yield run_of("onebit_adam", seed, crossing)
        yield run_of("onebit_adam_warm8", seed, 380)
        yield run_of("zero_one_adam", seed, 400)
    for variant, crossing in (("ddp_fp32", 400), ("zero_one_adam", 300)):
        yield run_of(variant, 1, crossing, ranks=4, sequences=8, model="4x128")


def full_runs():
    for variant, crossing, seconds in (
        ("ddp_fp32", 400, 2.0),
        ("onebit_adam_warm8", 380, 0.3),
    ):
        yield {**run_of(variant, 1, crossing), "mbit": 100, "seconds": [seconds] * 400}


def planned(way, exchange, step, run):
    return {"way": way, "exchange": exchange, "ms_per_step": step, "run_seconds": run}


def recorded():
    return {
        "processor": "Imaginary 9000",
        "cores": 2,
        "goodput": 0.96,
        "context": 64,
        "batch": 1,
        "rounds": [*rounds("steps"), *rounds_on_hosts()],
        "plans": [
            {
                "mbit": 100,
                "ways": [
                    planned("exact", "flat", 2310.0, 924.0),
                    planned("onebit_adam", "flat", 99.0, 83.7),
                    planned("onebit_adam", "by_host", 1.0, 1.0),
                    planned("lean", "flat", 1.0, 1.0),
                    {"fastest": "lean", "exchange": "flat"},
                ],
            }
        ],
        "full_runs": [*full_runs()],
        "losses": [*losses()],
    }


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="thinwire_network_")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out = self.folder / "out"


class Refusals(Case):
    def command(self, user, *arguments):
        """The script, which is told that it is this user's."""
        told = (
            f"import os, runpy, sys; os.geteuid = lambda: {user}; "
            "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        return [sys.executable, "-c", told, str(RUN), "--out", self.out, *arguments]

    def environment(self, **programs):
        """With these programs and no others."""
        for name, script in programs.items():
            path = self.folder / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        return {**os.environ, "PATH": str(self.folder)}

    def refuse(self, user, **programs):
        done = run(*self.command(user), env=self.environment(**programs))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertFalse(self.out.exists())
        return done.stderr

    def test_a_machine_that_cannot_make_namespaces_shows_the_reason(self):
        why = "unshare failed: Operation not permitted"
        refused = f"echo '{why}'; exit 1"
        tools = {"tc": "", "unshare": ""}
        missing = "ip is not installed: apt-get install iproute2"
        for user, programs, *parts in (
            (1000, {}, "needs root"),
            (0, {**tools, "setpriv": ""}, missing),
            (0, {**tools, "setpriv": refused, "ip": ""}, "no network namespaces", why),
        ):
            refusal = self.refuse(user, **programs)
            for part in parts:
                self.assertIn(part, refusal)

    def test_unknown_arguments(self):
        done = run(*self.command(0, "--fast"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("--fast", done.stderr)

    def wait_for_end_of(self, process):
        """It may stay as a zombie where nobody asks for orphans."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                state = Path(f"/proc/{process}/stat").read_text()
            except OSError:
                return
            if state.rpartition(")")[2].split()[0] == "Z":
                return
            time.sleep(0.01)
        self.fail(f"process {process} is still there")

    def test_a_signal_ends_running_commands(self):
        sleep = shutil.which("sleep")
        # By then the process has been started for good: the real one would end
        # with its parent at any moment.
        noted = f"{sleep} 1; echo $$ > {self.folder}/pid; exec {sleep} 600"
        for number in (signal.SIGINT, signal.SIGTERM):
            (self.folder / "pid").unlink(missing_ok=True)
            under_way = subprocess.Popen(
                self.command(0),
                env=self.environment(ip="", tc="", unshare="", setpriv=noted),
                stderr=subprocess.DEVNULL,
            )
            while not (self.folder / "pid").exists() or not (
                text := (self.folder / "pid").read_text().strip()
            ):
                self.assertIsNone(under_way.poll())
                time.sleep(0.01)
            under_way.send_signal(number)
            self.assertEqual(under_way.wait(60), 130)
            self.wait_for_end_of(text)


class Results(Case):
    def setUp(self):
        super().setUp()
        self.out.mkdir()
        self.shown = self.show(recorded())

    def show(self, results):
        steps = {name: value for name, value in results.items() if name != "losses"}
        (self.out / "results.json").write_text(json.dumps(steps))
        (self.out / "losses.json").write_text(json.dumps(results["losses"]))
        done = run(sys.executable, RUN, "--show", "--out", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_every_table_and_the_picture(self):
        self.assertEqual((self.out / "table.md").read_text(), self.shown)
        for heading in (
            "Steps of 2 ranks, medians of 3 rounds; computing alone",
            "| 100 Mbit/s | 1 Gbit/s |",
            "`thinwire plan`, 2 ranks",
            "`thinwire plan --steps`, 2 ranks",
            "100 Mbit/s, 2 hosts of 2 ranks, medians of 3 rounds of 4 steps",
            "8x256, 2 ranks, 1 sequence, until the loss of exact Adam after 400 steps",
            "4x128, 4 ranks, 8 sequences, until the loss of exact Adam after 400 steps",
        ):
            self.assertIn(heading, self.shown)
        self.assertIn("| exact | 2310, ", self.shown)
        # Ratios are taken in each round: 20, 20 and 10 times.
        self.assertIn("| 800 KB | 60.0 | 110 (20.0×) |", self.shown)
        svg = (self.out / "network.svg").read_text()
        self.assertNotIn("nan", svg)
        name = "{http://www.w3.org/2000/svg}text"
        words = [element.text for element in ElementTree.fromstring(svg).iter(name)]
        self.assertIn("100 Mbit/s", words)
        self.assertIn("Imaginary 9000", " ".join(words))

    def test_every_way_has_its_numbers_of_steps(self):
        import variants

        for variant in (variants.COMPUTING, *variants.WAYS):
            for mbit in (25, 100, 1000, 10_000, None):
                self.assertGreater(variants.steps_of(variant, mbit, 2), 0)
            self.assertGreater(variants.warm_steps(variant), 0)
            variants.is_compressed(variant)

    def test_every_step_of_a_run_is_measured_or_another_ways(self):
        import variants

        for variant in variants.OF_A_RUN:
            way = variants.WAYS[variant]
            for measured in (way.first, way.exchange, way.turn):
                self.assertIn(measured or "adam", variants.ALL)
            own = {way.first, way.exchange, way.turn} - {""}
            self.assertTrue(variant in variants.ALL or len(own) == 3, variant)

    def test_what_is_not_measured_yet_is_left_out(self):
        results = recorded()
        (self.out / "network.svg").unlink()
        shown = self.show({**results, "rounds": [], "plans": []})
        self.assertIn("until the loss of exact Adam after 400 steps", shown)
        self.assertFalse((self.out / "network.svg").exists())
        hosts = {"rounds": [*rounds_on_hosts()], "losses": [], "plans": []}
        shown = self.show({**results, **hosts})
        self.assertEqual(shown.count("medians of 3 rounds"), 1)

    def test_a_loss_that_is_not_reached_is_said(self):
        results = recorded()
        for run in results["losses"]:
            if run["variant"] == "zero_one_adam":
                run.update(run_of("zero_one_adam", run["seed"], 401))
        self.assertIn("| not in 400 |", self.show(results))
        self.assertNotIn("0/1 Adam", (self.out / "network.svg").read_text())

    def test_a_run_is_continued_until_it_reaches_the_loss(self):
        results = recorded()
        for run in results["losses"]:
            if run["variant"] == "onebit_adam":
                run.update(run_of("onebit_adam", run["seed"], 430, continued=50))
        shown = self.show(results)
        self.assertIn("| 1.830 | +0.030, +0.030 (+0.030) | 430 | 430 MB |", shown)
        for run in results["losses"]:
            if run["variant"] == "onebit_adam":
                run.update(run_of("onebit_adam", run["seed"], 470, continued=50))
        self.assertIn("| not in 450 |", self.show(results))

    def test_publish_writes_the_picture_and_the_marked_tables(self):
        (self.folder / "docs").mkdir()
        (self.folder / "bench").mkdir()
        marked = "before\n<!-- network: tables -->\nold\n<!-- network: end -->\nafter\n"
        page = self.folder / "bench" / "README.md"
        page.write_text(marked)
        for _ in range(2):
            done = run(PUBLISH, "--from", self.out, "--root", self.folder)
            self.assertEqual(done.returncode, 0, done.stderr)
        text = page.read_text()
        self.assertNotIn("old", text)
        self.assertTrue(text.startswith("before\n<!-- network: tables -->\n"))
        self.assertTrue(text.endswith("<!-- network: end -->\nafter\n"))
        self.assertIn(self.shown, text)
        self.assertEqual(
            (self.folder / "docs" / "network.svg").read_text(),
            (self.out / "network.svg").read_text(),
        )


class RunsForLosses(Case):
    """Kept by setting and seed. The run itself is replaced."""

    def make(self, only="^zero_4_4$", until=0.03, **options):
        """Returns (way, seed, target) of the runs that were made."""
        import losses

        made = []

        def train(place, recipe, variant, seed, target, port):
            made.append((variant, seed, target))
            end = (
                recipe.setting.steps,
                seed + (until if variant != "ddp_fp32" else 0),
                1e6,
            )
            sizes = dataclasses.asdict(recipe.setting)
            of_run = {"variant": variant, "seed": seed}
            return {**sizes, **of_run, "losses": [end], "kinds": "e", "seconds": []}

        given = {"seeds": [], "model": "8x256", "ranks": 2, "sequences": 1}
        given |= {"steps": 400, "jobs": 1}
        given |= {"only": only, "out": self.folder, "python": "", "text": [], **options}
        with unittest.mock.patch("losses.train", train):
            losses.Losses(argparse.Namespace(**given), self.folder).make_all()
        return made

    def test_the_peer_is_first_and_the_target_of_its_seed(self):
        peers = [("ddp_fp32", seed, math.inf) for seed in (1, 2, 3)]
        others = [("zero_4_4", seed, seed) for seed in (1, 2, 3)]
        self.assertEqual(self.make(), peers + others)

    def test_ways_that_no_picture_shows_have_one_seed_unless_some_are_given(self):
        ways = [run[:2] for run in self.make("^onebit_adam$") if run[0] != "ddp_fp32"]
        self.assertEqual(ways, [("onebit_adam", 1)])
        self.assertEqual(
            [run[:2] for run in self.make("^onebit_adam$", seeds=[2, 4])],
            [("ddp_fp32", 4), ("onebit_adam", 2), ("onebit_adam", 4)],
        )

    def test_runs_are_kept_for_their_setting_until_the_way_changes(self):
        import variants

        self.make(seeds=[1])
        self.assertEqual(self.make(seeds=[1]), [])
        self.assertEqual(len(self.make(seeds=[1], ranks=4)), 2)
        self.assertEqual(len(self.make(seeds=[1], steps=100)), 2)
        changed = dataclasses.replace(variants.WAYS["zero_4_4"], first_steps=3)
        with unittest.mock.patch.dict(variants.WAYS, zero_4_4=changed):
            self.assertEqual(self.make(seeds=[1]), [("zero_4_4", 1, 1)])
        kept = json.loads((self.folder / "losses.json").read_text())
        self.assertEqual([run["ranks"] for run in kept], [2, 4, 4, 2, 2, 2])


if __name__ == "__main__":
    unittest.main()

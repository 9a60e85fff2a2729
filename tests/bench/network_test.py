#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/network/run without root: what it refuses, how it ends, and what it makes
of results that are there already."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from xml.etree import ElementTree

BENCH = Path(__file__).resolve().parents[2] / "bench" / "network"
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


def entry(name, variant, number, seconds, mbit=None, ranks_per_host=1):
    made = {
        "set": name,
        "variant": variant,
        "round": number,
        "ranks": 2 * ranks_per_host,
        "ranks_per_host": ranks_per_host,
        "mbit": mbit,
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


def run_of(crossing):
    """400 steps of half a second; 1.80 is passed between two validations."""
    metrics = []
    for step in range(1, 401):
        metrics.append({"step": step, "seconds": 0.5, "loss": 2.0})
        if step % 100 == 0:
            loss = 1.80 + (crossing - step) / 1000
            metrics.append({"step": step, "val_loss": loss})
    return {"wall_seconds": 250.0, "metrics": metrics}


def recorded():
    return {
        "processor": "Imaginary 9000",
        "cores": 2,
        "goodput": 0.96,
        "context": 64,
        "models": {"steps": {"layers": 8, "width": 256, "batch": 1}},
        "run": {"steps": 400, "freeze_step": 100, "mbit": 100},
        "rounds": [*rounds("steps"), *rounds("runs"), *rounds_on_hosts()],
        "plans": [
            {
                "mbit": 100,
                "ways": [
                    {"way": "exact", "exchange": "flat", "ms_per_step": 2310.0},
                    {"way": "onebit_adam", "exchange": "flat", "ms_per_step": 99.0},
                    {"way": "onebit_adam", "exchange": "by_host", "ms_per_step": 1.0},
                    {"way": "lean", "exchange": "flat", "ms_per_step": 1.0},
                    {"fastest": "lean", "exchange": "flat"},
                ],
            }
        ],
        "runs": {"ddp_fp32": run_of(250), "onebit_adam": run_of(230)},
        "schedules": {"300": schedule(60, 52, 76), "3000": schedule(600, 104, 765)},
    }


def schedule(exact, variance, local):
    """Of 1-bit Adam, and of 0/1 Adam in 300 steps."""
    return {
        "onebit_adam": {"exact": exact, "compressed": 240, "local": 0},
        "zero_one_adam": {"exact": variance, "compressed": 172, "local": local},
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
        done = subprocess.run(
            self.command(user),
            capture_output=True,
            text=True,
            check=False,
            env=self.environment(**programs),
        )
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertFalse(self.out.exists())
        return done.stderr

    def test_other_users_than_root(self):
        self.assertIn("needs root", self.refuse(1000))

    def test_a_machine_without_ip(self):
        refusal = self.refuse(0, tc="", unshare="", setpriv="")
        self.assertIn("ip is not installed: apt-get install iproute2", refusal)

    def test_where_no_namespace_may_be_made(self):
        why = "echo 'unshare failed: Operation not permitted'; exit 1"
        refusal = self.refuse(0, ip="", tc="", unshare="", setpriv=why)
        self.assertIn("no network namespaces", refusal)
        self.assertIn("Operation not permitted", refusal)

    def test_unknown_arguments(self):
        done = subprocess.run(
            self.command(0, "--fast"), capture_output=True, text=True, check=False
        )
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

    def test_a_signal_ends_what_is_under_way(self):
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
        (self.out / "results.json").write_text(json.dumps(results))
        done = subprocess.run(
            [sys.executable, str(RUN), "--show", "--out", str(self.out)],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def cells(self, name, column):
        lines = [
            [cell.strip() for cell in line.strip("|\n").split("|")]
            for line in self.shown.stdout.splitlines()
        ]
        return [
            line[column] for line in lines if line[0] == name and column < len(line)
        ]

    def test_ratios_are_taken_in_each_round(self):
        self.assertEqual(self.cells("Thinwire, 1-bit Adam", 1)[:2], ["110", "110"])
        # 20, 20 and 10 times in the three rounds; of medians it would be 20.
        self.assertEqual(self.cells("Thinwire, Adam (exact)", 3)[0], "1.05")
        self.assertEqual(self.cells("Thinwire, 1-bit Adam", 2)[0], "800 KB")
        # The wire: 0.8 MB at 96 Mbit/s of payload; computing is less.
        self.assertEqual(self.cells("Thinwire, 1-bit Adam", 4)[0], "60.0")
        self.assertEqual(self.cells("Thinwire, 1-bit Adam", 5)[0], "66.7")
        self.assertEqual(self.cells("Thinwire, 1-bit Adam", 6)[0], "1.65")
        # At 1 Gbit/s computing is more, its own without a limit where that was
        # measured: 0.1, 0.11 and 0.3 s over 0.06.
        self.assertEqual(self.cells("Thinwire, 1-bit Adam", 6)[1], "1.83")
        # 0.12 / 0.05, 0.14 / 0.06 and 0.3 / 0.05.
        self.assertEqual(self.cells("Thinwire, 1-bit Adam, Python", 6)[1], "2.40")
        self.assertEqual((self.out / "table.md").read_text(), self.shown.stdout)

    def test_plans_stand_beside_what_was_measured(self):
        lines = [line for line in self.shown.stdout.splitlines() if "/s | " in line]
        planned = [line for line in lines if "| 100 Mbit/s | 99.0 |" in line]
        expected = "| onebit_adam | 100 Mbit/s | 99.0 | 110 | 0.90 |"
        self.assertEqual(planned, [expected])
        self.assertIn("| 2310 | 2100 | 1.10 |", self.shown.stdout)

    def test_by_host_beside_flat(self):
        name = "1-bit Adam without forward and backward"
        self.assertIn("100 Mbit/s, 2 hosts of 2 ranks", self.shown.stdout)
        self.assertEqual(self.cells(f"{name}, flat", 2), [""])
        # 0.5, 0.55 and 0.55 in the three rounds.
        self.assertEqual(self.cells(f"{name}, by host", 2), ["0.55"])
        self.assertEqual(self.cells(f"{name}, by host", 1), ["77.0"])

    def test_parts_of_a_step(self):
        parts = self.cells("Thinwire, 1-bit Adam", 2)
        self.assertIn("100 Mbit/s", parts)
        row = next(
            line
            for line in self.shown.stdout.splitlines()
            if "| 100 Mbit/s | 110" in line
        )
        self.assertIn("| 110 | 40.0 | 10.0 | 50.0 | 66.7 |", row)

    def test_python_has_rows_of_its_own(self):
        self.assertEqual(self.cells("Thinwire, 1-bit Adam, Python", 1)[0], "140")
        self.assertEqual(self.cells("Thinwire, 1-bit Adam, Python", 2)[0], "700 KB")

    def test_time_to_a_loss_counts_exact_steps_as_exact(self):
        steps = [
            self.cells(name, 1)[-1]
            for name in ("torch DDP, fp32", "Thinwire, 1-bit Adam")
        ]
        self.assertEqual(steps, ["250", "230"])
        self.assertEqual(self.cells("torch DDP, fp32", 2)[-1], "550")
        # 100 steps of 2.1 s and 130 of 0.11 s.
        self.assertEqual(self.cells("Thinwire, 1-bit Adam", 2)[-1], "224")
        self.assertEqual(self.cells("Thinwire, 1-bit Adam", 5)[-1], "115")

    def test_whole_runs_have_their_exact_steps(self):
        self.assertIn("300 steps at 100 Mbit/s | 3,000 steps", self.shown.stdout)

        def brief(name):
            return next(cell for cell in self.cells(name, 1) if " s" in cell)

        # 2.2 s each; 60 of 2.1 s and 240 of 0.11 s.
        self.assertEqual(brief("torch DDP, fp32"), "660 s")
        self.assertEqual(brief("Thinwire, 1-bit Adam"), "152 s (4.3×)")
        # 60 of 0.6 s and 240 of 0.11 s.
        warm = "Thinwire, 1-bit Adam, warm-up over 8 bits"
        self.assertEqual(brief(warm), "62.4 s (11×)")
        # 52 of 2.1 s, 172 of 0.11 s, and of 0.07 s, of which three and one of 0.11 s
        # have a mean of 0.08 s, 76.
        self.assertEqual(brief("Thinwire, 0/1 Adam"), "133 s (4.9×)")

    def test_results_without_schedules_have_no_whole_runs(self):
        results = recorded()
        del results["schedules"]
        self.assertNotIn("whole runs", self.show(results).stdout)
        self.assertNotIn("whole run", (self.out / "network.svg").read_text())

    def test_hosts_alone_are_shown_alone(self):
        results = recorded()
        results.update(rounds=[*rounds_on_hosts()], runs={}, plans=[])
        done = self.show(results)
        self.assertEqual(done.stdout.count("medians of 3 rounds"), 1)

    def test_a_loss_that_is_not_reached_is_said(self):
        results = recorded()
        results["runs"]["ddp_fp32"] = run_of(1000)
        done = self.show(results)
        self.assertIn("| torch DDP, fp32 | not reached |", done.stdout)

    def test_the_picture_is_text_and_bars(self):
        svg = (self.out / "network.svg").read_text()
        self.assertLess(len(svg), 100_000)
        self.assertIn("prefers-color-scheme: dark", svg)
        self.assertNotIn("nan", svg)
        name = "{http://www.w3.org/2000/svg}"
        root = ElementTree.fromstring(svg)
        words = [element.text for element in root.iter(f"{name}text")]
        for expected in (
            "100 Mbit/s",
            "1 Gbit/s",
            "10 Gbit/s",
            "110 ms (20×)",
            "800 KB",
            "300 steps, 100 Mbit/s",
            "152 s (4.3×)",
        ):
            self.assertIn(expected, words)
        self.assertIn("Imaginary 9000", " ".join(words))
        bars = [
            float(element.get("width"))
            for element in root.iter(f"{name}rect")
            if element.get("class") in ("ours", "peer")
        ]
        self.assertEqual(len(bars), (4 + 3) * len(SECONDS))
        self.assertAlmostEqual(bars[0] / bars[2], 30, delta=0.5)

    def test_publish_writes_the_picture_and_the_marked_tables(self):
        (self.folder / "docs").mkdir()
        (self.folder / "bench").mkdir()
        marked = "before\n<!-- network: tables -->\nold\n<!-- network: end -->\nafter\n"
        page = self.folder / "bench" / "README.md"
        page.write_text(marked)
        for _ in range(2):
            subprocess.run(
                [
                    sys.executable,
                    str(PUBLISH),
                    "--from",
                    self.out,
                    "--root",
                    self.folder,
                ],
                check=True,
            )
        text = page.read_text()
        self.assertNotIn("old", text)
        self.assertTrue(text.startswith("before\n<!-- network: tables -->\n"))
        self.assertTrue(text.endswith("<!-- network: end -->\nafter\n"))
        self.assertIn(self.shown.stdout, text)
        self.assertEqual(
            (self.folder / "docs" / "network.svg").read_text(),
            (self.out / "network.svg").read_text(),
        )


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `thinwire plan` as users do: alone, as MPI processes, and wrongly.

usage: plan_test.py THINWIRE MPIEXEC [TEST...]

MPIEXEC is empty where the build has no MPI; then tests that need it are
skipped, or fail if THINWIRE_REQUIRE names mpi.
"""

import json
import os
import re
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

import mpi_launcher
from mpi_launcher import launcher, needs_mpi, run

THINWIRE, mpi_launcher.MPIEXEC = sys.argv[1:3]
DESCRIBED = ["--ranks", "16", "--link-gbps", "10"]
# A card with the memory of an H100, and the cluster of the guide's table.
CARDS = [
    "--params",
    "1e9",
    "--ranks",
    "32",
    "--ranks-per-host",
    "8",
    "--device-memory",
    "3350",
    "--device-link",
    "450",
    "--device-copies",
    "25",
    "--host-memory",
    "100",
]
WAYS = [
    "exact",
    "onebit_adam",
    "zero_one_adam",
    "zero",
    "zero 8/8",
    "zero 4/4",
    "lean",
    "outer 4/4",
    "torch ddp",
    "ddp_hook 4/4",
    "low rank 8",
]
# Named the fastest of long runs alone, and of larger models than these.
OF_LONG_RUNS, OF_LARGE_MODELS = "outer 4/4", "low rank 8"
KEYS = [
    "way",
    "exchange",
    "ms_per_step",
    "bytes_sent",
    "bytes_between_hosts",
    "messages",
    "rounds",
    "memory_bytes",
    "break_even_gbps",
]
KEYS_OF_RUN = ["run_seconds", "run_bytes_sent", "run_steps", "warmup_bits"]


def replaced(words):
    """What describes a network, with one flag's value given or another."""
    if words[0] not in DESCRIBED:
        return [*DESCRIBED, *words]
    at = DESCRIBED.index(words[0])
    return [*DESCRIBED[:at], *words, *DESCRIBED[at + 2 :]]


class Plan(unittest.TestCase):
    def run_plan(self, *words, ranks=0, code=0, environment=None):
        command = [*launcher(ranks), THINWIRE, "plan", *map(str, words)]
        if "--params" not in words:
            command += ["--params", "300001"]
        variables = {**os.environ, "THINWIRE_TIMEOUT": "60s", **(environment or {})}
        variables.pop("THINWIRE_NUM_THREADS", None)
        done = run(*command, timeout=300, env=variables)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr if code else done.stdout

    @staticmethod
    def is_long(way):
        return sum(way.get("run_steps", {}).values()) >= 5000

    def lines_of(self, *words, **how):
        """The ways, and what comes last."""
        *ways, last = map(
            json.loads, self.run_plan(*words, "--json", **how).splitlines()
        )
        by, keys = "ms_per_step", KEYS
        if "--steps" in words:
            by, keys = "run_seconds", KEYS + KEYS_OF_RUN
        for way in ways:
            self.assertEqual(list(way), keys)
            self.assertGreater(way["ms_per_step"], 0)
            self.assertGreater(way["memory_bytes"], 2 * 300_001)
        counts = [
            way
            for way in ways
            if way["way"] != OF_LARGE_MODELS
            and (way["way"] != OF_LONG_RUNS or self.is_long(way))
        ]
        fastest = min(counts, key=lambda way: way[by])
        self.assertEqual(last["fastest"], fastest["way"])
        self.assertEqual(last["exchange"], fastest["exchange"])
        return ways, last

    def refused(self, *words, parts, ranks=0, described=DESCRIBED):
        """With 2, and one line alone that has all of `parts`."""
        said = self.run_plan(*described, *words, ranks=ranks, code=2)
        if not ranks:
            self.assertEqual(said.count("\n"), 1, said)
        for part in parts:
            self.assertIn(part, said)

    def file(self, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "config.json"
        path.write_text(text)
        return path

    def test_alone_it_plans_what_is_described(self):
        ways, _ = self.lines_of(*DESCRIBED, "--compute-ms", 6)
        self.assertEqual([way["way"] for way in ways], WAYS)
        self.assertEqual({way["exchange"] for way in ways}, {"flat"})
        for way in ways:
            self.assertGreater(way["ms_per_step"], 6)
            self.assertEqual(way["bytes_between_hosts"], way["bytes_sent"])
        sent = {way["way"]: way["bytes_sent"] for way in ways}
        self.assertAlmostEqual(sent["exact"], 2 * 15 / 16 * 4 * 300_001, delta=4)
        self.assertLess(20 * sent["onebit_adam"], sent["exact"])

    def test_several_hosts_have_a_hierarchical_row(self):
        ways, _ = self.lines_of(*DESCRIBED, "--ranks-per-host", 4)
        flat = [way["way"] for way in ways if way["exchange"] == "flat"]
        by_host = [way["way"] for way in ways if way["exchange"] == "by_host"]
        self.assertEqual(flat, WAYS)
        self.assertIn("onebit_adam", by_host)
        for way in ways:
            self.assertLess(way["bytes_between_hosts"], way["bytes_sent"])

    def test_the_table_has_a_line_per_way(self):
        text = self.run_plan(*DESCRIBED, "--forward-ms", 1, "--backward-ms", 2)
        lines = text.splitlines()
        self.assertIn("as described: 16 ranks; link of each 10 Gbit/s", lines[0])
        spread = r"[0-9.]+ \([0-9]+ %\)"
        self.assertRegex(text, f"ns per element: encode {spread}, serve {spread}, ")
        self.assertRegex(text, f"0/1 Adam: local step {spread}, ")
        self.assertIn("a single rank cannot measure the cost", text)
        (head,) = (i for i, line in enumerate(lines) if line.startswith("way "))
        for line, way in zip(lines[head + 1 :], WAYS, strict=False):
            self.assertRegex(line, f"^{way} +flat +[0-9.]+ ")
        self.assertRegex(lines[-1], "^fastest: .*, flat, [0-9.]+ ms per step$")

    def test_a_run_is_predicted_whole_and_ways_are_in_its_order(self):
        words = [*DESCRIBED, "--compute-ms", 6, "--steps", "5e2"]
        ways, _ = self.lines_of(*words)
        self.assertEqual(sorted(way["way"] for way in ways), sorted(WAYS))
        seconds = [way["run_seconds"] for way in ways]
        self.assertEqual(seconds, sorted(seconds))
        by_name = {way["way"]: way for way in ways}
        for name, exact in (("exact", 500), ("onebit_adam", 100), ("lean", 100)):
            steps = {"exact": exact, "compressed": 500 - exact, "local": 0}
            self.assertEqual(by_name[name]["run_steps"], steps)
        onebit, every = by_name["onebit_adam"], by_name["exact"]
        self.assertEqual((onebit["warmup_bits"], every["warmup_bits"]), (8, 0))
        for bits in (4, 0):
            ways, _ = self.lines_of(*words, "--warmup-bits", bits)
            few = next(way for way in ways if way["way"] == "onebit_adam")
            self.assertEqual(few["warmup_bits"], bits)
        steps = by_name["zero_one_adam"]["run_steps"]
        self.assertEqual(sum(steps.values()), 500)
        self.assertGreater(min(steps.values()), 0)
        text = self.run_plan(*words, "--freeze-step", 60)
        self.assertIn("onebit_adam: 60 steps of the run are exact, 440 comp", text)
        self.assertRegex(text.splitlines()[-1], "^fastest: .* for 500 steps$")

    def test_without_times_it_says_what_a_step_is_taken_to_be(self):
        said = "without --forward-ms and --backward-ms"
        self.assertIn(said, self.run_plan(*DESCRIBED))
        self.assertNotIn(said, self.run_plan(*DESCRIBED, "--compute-ms", 1))

    def test_says_whether_cores_are_to_spare(self):
        cores = len(os.sched_getaffinity(0))
        for threads, spare in ((0, True), (cores, False), (max(cores - 1, 1), None)):
            if spare is None:
                spare = cores > 1
            words = [*DESCRIBED, "--threads", threads]
            _, last = self.lines_of(*words)
            self.assertEqual(last["has_spare_core"], spare, words)
            text = self.run_plan(*words)
            if threads == 0:
                self.assertIn("an accelerator computes", text)
                continue
            rank = re.escape(f"1 rank of {threads} thread")
            self.assertRegex(text, f"{rank}s? on {cores} cores?: ")
            self.assertIn("spare cores run" if spare else "no spare cores", text)
        _, last = self.lines_of(*DESCRIBED, "--ranks-per-host", 16, "--threads", cores)
        self.assertIs(last["has_spare_core"], False)

    def test_follows_a_configuration(self):
        bf16 = self.file('{"bf16": {"enabled": true}}')
        whole, _ = self.lines_of(*DESCRIBED)
        half, _ = self.lines_of(*DESCRIBED, "--config", bf16)
        flag, _ = self.lines_of(*DESCRIBED, "--dtype", "bf16")
        self.assertEqual(2 * half[0]["bytes_sent"], whole[0]["bytes_sent"])
        self.assertEqual(half[0]["bytes_sent"], flag[0]["bytes_sent"])
        four = self.file(
            '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}'
        )
        window, _ = self.lines_of(*DESCRIBED, "--config", four)
        sent = [
            next(way["bytes_sent"] for way in ways if way["way"] == "zero")
            for ways in (whole, window)
        ]
        self.assertAlmostEqual(sent[1] / sent[0], 2.5, delta=0.01)
        syncs = self.file(
            '{"optimizer": {"type": "ZeroOneAdam", '
            '"params": {"local_step_clipper": 4}}}'
        )
        text = self.run_plan(*DESCRIBED, "--config", syncs)
        self.assertIn("at one sync in 4 steps", text)
        text = self.run_plan(*DESCRIBED, "--variance-every", 8)
        self.assertIn("before its freeze, at one variance step in 8 steps", text)

    def averages(self, link, *words):
        """The numbers of each average by its name."""
        text = self.run_plan(*CARDS, "--link-gbps", link, *words)
        table = text.split("\naverage ")[1].splitlines()[1:5]
        return {row[:26].strip(): row[26:].split() for row in table}

    def test_the_guides_table_of_averages_is_the_plans(self):
        links = (10, 25, 100)
        all_links = [self.averages(link) for link in links]
        heads = ("average", "device memory", "inside a host", "copies", "host memory")
        at = f"at {' / '.join(map(str, links))} Gbit/s"
        rows = [[*heads, f"network {at}", f"sum {at}"], ["---"] * 7]
        for name, (*own, _, _) in all_links[0].items():
            by_link = zip(*(averages[name][-2:] for averages in all_links))
            rows.append([name, *own, *map(" / ".join, by_link)])
        table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        guide = Path(__file__).resolve().parents[2] / "docs/guide/devices.md"
        between = guide.read_text().split("<!-- averages: begin -->\n")[1]
        table = table.replace(
            "| --- | --- | --- | --- | --- | --- | --- |", "|---" * 7 + "|"
        )
        self.assertEqual(between.split("<!-- averages: end -->")[0], table, table)

    def test_averages_on_devices_follow_the_rates(self):
        once, twice = self.averages(10), self.averages(10, "--dtype", "bf16")
        path = "ddp_hook 4/4, device path"
        self.assertLess(int(twice[path][0]), int(once[path][0]))
        self.assertEqual(twice[path][4], once[path][4])
        exact = "exact in bf16"
        # 2 bytes of 4 bits and a step per 1024 elements, to all hosts but this one.
        ratio = int(once[exact][4]) / int(once[path][4])
        self.assertAlmostEqual(ratio, 2 / (0.5 + 4 / 1024), delta=0.01)
        text = self.run_plan(*DESCRIBED, "--device-memory", 1000)
        self.assertRegex(text, r"on 16 hosts of 1 devices.* host memory [1-9]")
        said = "the table below, and `fastest`, are for tensors in host memory"
        self.assertLess(text.index(said), text.index("fastest: "))
        self.assertNotIn("averages with DDP", self.run_plan(*DESCRIBED))

    def test_refuses_what_is_wrong_by_flag_and_value(self):
        params = "--params: must be in [1, 1000000000000000], got "
        for flags, *parts in (
            ("--params 0", f"{params}0"),
            ("--params nan", f"{params}nan"),
            ("--compute-ms x", "--compute-ms: must be in [0, 1000000000], got x"),
            ("--ranks 1", "--ranks: must be in [2, 1000000], got 1"),
            ("--steps 2.5", "--steps: must be in [1, 100000000], got 2.5"),
            (
                "--ranks-per-host 3",
                "--ranks-per-host must be a divisor of --ranks 16, got 3",
            ),
            ("--dtype fp64", "--dtype", "fp64", "bf16"),
            ("--compute-ms 1 --forward-ms 1", "--compute-ms", "--forward-ms"),
            ("--freeze-step 5", "--freeze-step: it needs --steps"),
            ("--warmup-bits 8", "--warmup-bits: it needs --steps"),
            (
                "--matrices 300002",
                *("--matrices: must be at most --params 300001", "got 300002"),
            ),
            (
                "--steps 300 --freeze-step 301",
                *("--freeze-step: must be at most --steps 300", "got 301"),
            ),
            ("--ranks-per-hots 2", "--ranks-per-hots"),
            ("--device-memory 0", "--device-memory: must be in [0.001, 1000000]"),
            ("--host-memory 9", "--host-memory", "they need --device-memory"),
            (
                "--ranks-per-host 4 --device-memory 9",
                "with --ranks-per-host it needs --device-link",
            ),
            ("--config /nowhere/at/all.json", "--config: ", "/nowhere/at/all.json"),
            *(
                (f"--config {self.file(text)}", "--config: ", part)
                for text, part in (
                    ("{", "not JSON"),
                    ('{"bf16": {"enabled": 3}}', "bf16.enabled"),
                    ('{"train_batch_size": 3}', "train_batch_size"),
                )
            ),
        ):
            with self.subTest(flags=flags):
                self.refused(parts=parts, described=replaced(flags.split()))
        self.refused(
            parts=["a single rank cannot measure a network", "mpirun", "--link-gbps"],
            described=[],
        )

    @needs_mpi
    def test_one_rank_under_a_launcher_is_alone(self):
        ways, _ = self.lines_of(*DESCRIBED, ranks=1)
        self.assertEqual([way["way"] for way in ways], WAYS)
        said = self.run_plan(ranks=1, code=2)
        self.assertIn("a single rank cannot measure a network", said)

    @needs_mpi
    def test_two_ranks_measure_their_network(self):
        ways, _ = self.lines_of("--compute-ms", 6, ranks=2)
        self.assertEqual([way["way"] for way in ways], WAYS)
        self.assertAlmostEqual(ways[0]["bytes_sent"], 4 * 300_001, delta=8)
        text = self.run_plan("--compute-ms", 6, "--threads", 512, ranks=2)
        self.assertRegex(text, r"measured: 2 ranks; link of each [0-9.e+]+ Gbit/s")
        self.assertIn("2 ranks of 512 threads on ", text)
        self.assertIn("no spare cores", text)
        self.assertIn("flat: all 2 ranks are on one host", text)
        self.assertRegex(text.splitlines()[-1], "^fastest: ")

    # Which is one machine all the same.
    @needs_mpi
    def test_two_emulated_hosts_share_the_machines_cores(self):
        one_each = {"THINWIRE_RANKS_PER_HOST": "1"}
        cores = len(os.sched_getaffinity(0))
        text = self.run_plan("--threads", cores, ranks=2, environment=one_each)
        self.assertIn("2 ranks; link of each", text)
        self.assertRegex(text, rf"2 ranks of {cores} threads? on \d+ cores?: no spare")

    @needs_mpi
    def test_under_a_launcher_it_refuses_what_is_measured_and_bad_files(self):
        odd = self.file('{"train_batch_size": 3}')
        for words, *parts in (
            (["--ranks", "2"], "under a launcher the network is measured"),
            (["--config", odd], "--config: ", "train_batch_size"),
        ):
            self.refused(*words, parts=parts, ranks=2, described=[])


if __name__ == "__main__":
    del sys.argv[1:3]
    result = unittest.main(exit=False).result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if len(result.skipped) == result.testsRun else 0)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The report of train_gpt, made from folders that no training has written.

usage: report_test.py
"""

import contextlib
import io
import json
import math
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples" / "train_gpt"))

import report

SVG = "{http://www.w3.org/2000/svg}"


def rows_of(optimizer, steps, ranks=4):
    rows = []
    for step in range(1, steps + 1):
        compressed = optimizer != "adam" and step > steps // 5
        local = optimizer == "zero_one_adam" and step > steps // 2 and step % 4 != 0
        phase = "local" if local else "compressed" if compressed else "exact"
        sent = {"local": 0, "compressed": 176_000, "exact": 5_595_648}[phase]
        row = {"step": step, "loss": 5.5 / step, "phase": phase, "tokens": 2048}
        row |= {"bytes_sent": sent if ranks > 1 else 0, "seconds": 0.1}
        rows.append(row | {"wait_seconds": 0.02, "update_seconds": 0.03})
        if step % 10 == 0:
            rows.append({"step": step, "val_loss": 2.0})
    return rows


class Report(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="thinwire_report_")
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def write(self, name, optimizer="adam", steps=50, rows=None, ranks=4, **summary):
        """Writes a run's folder as train_gpt does. `summary` has other values."""
        run = self.folder / name
        run.mkdir()
        rows = rows_of(optimizer, steps, ranks) if rows is None else rows
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (run / "metrics.jsonl").write_text(text)
        own = {"data": ["a.txt"], "optimizer": optimizer, "steps": steps}
        config = {"optimizer": {"params": {"lr": 0.5}}, "train_gpt": own}
        (run / "config.json").write_text(json.dumps(config))
        values = {"optimizer": optimizer, "steps": steps, "ranks": ranks}
        values |= {"params": 932_608, "params_checksum": "0123456789abcdef"}
        values |= {"final_val_loss": 1.6123, "final_val_bits_per_byte": 2.32606}
        values |= {"bytes_sent_per_rank": 123_456_789, "seconds": 61.25}
        values |= {"tokens_per_second": 16_700, "memory": {"peak": 17_000}}
        (run / "summary.json").write_text(json.dumps(values | summary))
        return run

    def run_report(self, *arguments):
        """Runs the script in this process, which imports matplotlib once."""
        stdout, stderr, code = io.StringIO(), io.StringIO(), 0
        with (
            unittest.mock.patch("sys.argv", ["report.py", *map(str, arguments)]),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            try:
                report.main()
            except SystemExit as end:
                code = end.code
                if isinstance(code, str):  # as Python ends the process
                    print(code, file=sys.stderr)
                    code = 1
        return subprocess.CompletedProcess(
            arguments, code, stdout.getvalue(), stderr.getvalue()
        )

    def report(self, *runs):
        """Returns the page of runs, and what was printed."""
        out = self.folder / "out"
        done = self.run_report(*runs, "--out", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"report: {out / 'report.html'}\n", done.stdout)
        return (out / "report.html").read_text(), done

    def figures_of(self, page):
        """Returns the SVG of each figure, by title."""
        found = {}
        for part in page.split("<figcaption>")[1:]:
            title, rest = part.split("</figcaption>", 1)
            svg = rest[: rest.index("</svg>") + 6]
            found[title] = ElementTree.fromstring(svg)
        return found

    def lines_of(self, svg):
        """Returns the points of each line that a clip bounds: of the curves."""
        paths = [path for path in svg.iter(f"{SVG}path") if path.get("clip-path")]
        return [path.get("d").count("L") + 1 for path in paths if path.get("style")]

    def refused(self, code, *arguments):
        done = self.run_report(*arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertNotIn("Traceback", done.stderr)
        return done.stderr

    def test_four_figures_have_a_line_and_a_name_for_each_run(self):
        names = ("adam", "onebit_adam", "zero_one_adam")
        page, _ = self.report(*(self.write(name, name, 200) for name in names))
        figures = self.figures_of(page)
        self.assertEqual(
            list(figures),
            [
                "Loss by step",
                "Loss on held-out text by bytes sent",
                "Loss on held-out text by time",
                "Bytes sent per step",
            ],
        )
        for title, svg in figures.items():
            texts = ["".join(text.itertext()) for text in svg.iter(f"{SVG}text")]
            for name in names:
                self.assertIn(name, texts, title)
            points = 50 if "step" in title else 20
            curves = [n for n in self.lines_of(svg) if n == points]
            self.assertEqual(len(curves), 3, (title, self.lines_of(svg)))
        axes = {"loss (nats per byte)", "step", "bytes sent per rank so far"}
        axes |= {"time of the steps so far (s)", "bytes sent per rank and step"}
        for text in axes:
            self.assertIn(text, page)

    def test_runs_differ_in_colour_and_in_dashes(self):
        page, _ = self.report(*(self.write(f"run{n}") for n in range(7)))
        svg = self.figures_of(page)["Bytes sent per step"]
        styles = [path.get("style") for path in svg.iter(f"{SVG}path")]
        lines = {style for style in styles if style and "stroke-width: 1.5" in style}
        self.assertEqual(len(lines), 7)
        self.assertGreaterEqual(len([s for s in lines if "dasharray" in s]), 5)

    def test_the_page_needs_nothing_from_outside_and_is_always_the_same(self):
        runs = [self.write("adam"), self.write("onebit_adam", "onebit_adam")]
        page, _ = self.report(*runs)
        for part in ("src=", "@import", "<link", "<script", "url(http", 'href="http'):
            self.assertNotIn(part, page)
        self.assertEqual(page, self.report(*runs)[0])

    def test_tables_have_the_results(self):
        adam, onebit = self.write("adam"), self.write("onebit_adam", "onebit_adam")
        page, done = self.report(adam, onebit)
        self.assertEqual(page.count("Comparison of 2 runs"), 2)
        for part in ("1.6123", "2.3261", "5.60 MB", "176 KB", "2.3×", "123 MB", "61.2"):
            self.assertIn(part, done.stdout)
            self.assertIn(part, page)
        for part in ("0123456789abcdef", "17.0 KB", ">16700<", ">20<", ">30<", ">0.5<"):
            self.assertIn(part, page)
        subtitle = "A byte-level GPT with 933k parameters, 50 steps on 4 ranks"
        self.assertEqual(page.count(subtitle), 1)
        # Settings in which runs differ are marked.
        self.assertIn('<tr class="differs"><td>optimizer</td>', page)
        self.assertIn("<tr><td>steps</td>", page)

    def test_a_step_in_which_only_a_flag_travelled_is_no_round(self):
        rows = rows_of("zero_one_adam", 48)
        for row in rows:
            if row.get("phase") == "local":
                row["bytes_sent"] = 4
        _, done = self.report(self.write("run", "zero_one_adam", 48, rows))
        self.assertIn(" 0.625", done.stdout)

    def test_bytes_are_compared_with_fp32_averages_unless_a_run_was_resumed(self):
        # 50 steps of 2 * 3/4 * 4 bytes for each of 932,608 parameters: 279.8 MB.
        sent = {"bytes_sent_per_rank": 27_978_240}
        self.assertIn(" 10.0×", self.report(self.write("whole", **sent))[1].stdout)
        resumed = self.write("resumed", **sent, resumed_from=30)
        _, done = self.report(resumed)
        self.assertNotIn("×", done.stdout)
        self.assertIn("adam, resumed at step 30", done.stdout)

    def test_sums_of_a_resumed_run_include_those_before(self):
        totals = {"bytes_sent_per_rank": 400_000_000, "seconds": 90.0}
        resumed = report.read_run(self.write("resumed", **totals, resumed_from=30))
        self.assertEqual(resumed.held_out("bytes_sent")[0][-1], 400_000_000)
        self.assertAlmostEqual(resumed.held_out("seconds")[0][0], 86.0)
        self.assertEqual(resumed.held_out()[0], [10, 20, 30, 40, 50])

    def test_low_bit_zero_is_told_apart_from_exact_zero(self):
        low_bit = self.write("zero", zero=2, zero_bits="4/4")
        _, done = self.report(self.write("adam"), low_bit)
        self.assertIn("\nadam ", done.stdout)
        self.assertIn("\nadam, ZeRO-2 in 4/4 bits ", done.stdout)

    def test_names_are_escaped_and_numbered(self):
        runs = [self.write(f"run{n}", "</script><b>$x$") for n in (1, 2)]
        page, done = self.report(*runs)
        self.assertNotIn("<b>", page)
        self.assertIn("&lt;b&gt;$x$ (2)", page)
        self.assertIn("</script><b>$x$ (1)", done.stdout)

    def test_losses_that_are_not_finite_are_left_out_and_counted(self):
        rows = rows_of("adam", 50)
        for row in rows[-6:]:
            row |= {"loss": None} if "loss" in row else {"val_loss": math.nan}
        run = self.write("run", rows=rows, final_val_loss=None)
        page, done = self.report(run)
        self.assertIn("5 losses are not finite, the first at step 46", done.stderr)
        self.assertEqual(len(self.figures_of(page)), 4)
        self.assertNotIn("nan", done.stdout)
        nothing = [row | {"loss": None} for row in rows_of("adam", 9)]
        page, done = self.report(self.write("none", rows=nothing))
        self.assertIn("9 losses are not finite, the first at step 1", done.stderr)

    def test_a_run_that_sends_nothing_has_two_figures(self):
        page, _ = self.report(self.write("run", steps=1, ranks=1))
        self.assertEqual(len(self.figures_of(page)), 2)
        self.assertIn("sent no bytes", page)

    def test_a_killed_run_is_shown_up_to_its_last_whole_line(self):
        run = self.write("run", "onebit_adam", 500, rows_of("onebit_adam", 42))
        (run / "summary.json").unlink()
        with (run / "metrics.jsonl").open("a") as metrics:
            metrics.write('{"step":43,"lo')
        page, done = self.report(run)
        self.assertIn("metrics.jsonl: line 47 is torn, and left out", done.stderr)
        self.assertIn("onebit_adam, stopped at step 42 ", done.stdout)
        self.assertIn(" 2.0000", done.stdout)
        self.assertIn("A byte-level GPT, 500 steps<", page)

    def test_errors_name_the_folder_or_file(self):
        (self.folder / "empty").mkdir()
        error = self.refused(1, self.folder / "empty")
        self.assertIn("empty: has no metrics.jsonl; name the --out folder", error)
        error = self.refused(1, self.folder / "nowhere")
        self.assertIn("nowhere: there is no such folder", error)
        none = self.write("none", rows=[])
        self.assertIn("metrics.jsonl: has no step yet", self.refused(1, none))
        torn = self.write("torn")
        (torn / "metrics.jsonl").write_text('{"step":1,"lo\n{}\n')
        error = self.refused(1, torn)
        self.assertIn("metrics.jsonl: line 1 is not what train_gpt writes", error)
        row = rows_of("adam", 1)[0]
        for wrong in (
            {"loss": "x"},
            {"bytes_sent": None},
            {"seconds": "1"},
            {"wait_seconds": None},
            {"bytes_sent": 10**400},
        ):
            (torn / "metrics.jsonl").write_text(json.dumps(row | wrong) + "\n")
            error = self.refused(1, torn)
            self.assertIn("line 1 is not what train_gpt writes", error)
        (torn / "metrics.jsonl").write_bytes(b"\xff\n")
        self.assertIn("line 1 is not what train_gpt writes", self.refused(1, torn))
        (torn / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        (torn / "summary.json").write_text("{}")
        error = self.refused(1, torn)
        self.assertIn("summary.json: lacks optimizer or steps", error)
        (torn / "summary.json").write_text("{")
        self.assertIn("summary.json: is not JSON", self.refused(1, torn))
        error = self.refused(2, torn, none)
        self.assertIn("several runs need --out DIR", error)


if __name__ == "__main__":
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        sys.exit(77)  # scripts/bootstrap installs it
    unittest.main(verbosity=2)

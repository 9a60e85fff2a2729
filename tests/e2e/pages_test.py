#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens the pages that people look at in a browser: the report of a comparison, made as
./demo makes it, and pages of the site.

usage: pages_test.py TRAIN_GPT SITE [SCREENSHOTS]

SITE is the folder that scripts/build_docs makes. Pictures of all pages are put into the
folder SCREENSHOTS.
"""

import sys
import unittest
from pathlib import Path

import train_gpt_runs
from browser import Browser
from train_gpt_runs import SMALL, Runs

SITE = Path()
SCREENSHOTS = None
# A table fits if neither it nor what it holds is wider than the place that it has.
TOO_WIDE = """[...document.querySelectorAll("table")].filter((table) =>
  table.scrollWidth > table.clientWidth + 1
  || table.offsetWidth > table.parentElement.clientWidth + 1
  || table.getBoundingClientRect().right > document.documentElement.clientWidth
).map((table) => table.textContent.trim().slice(0, 60))"""
# Counts what each chart has drawn within its frame.
FIGURES = """[...document.querySelectorAll("figure svg")].map((svg) => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("circle, polyline")].filter((mark) => {
    const box = mark.getBoundingClientRect();
    return box.width > 1 && box.height > 1
      && box.left >= frame.left && box.right <= frame.right
      && box.top >= frame.top && box.bottom <= frame.bottom;
  }).length;
})"""


class Pages(Runs):
    def setUp(self):
        super().setUp()
        self.browser = Browser()
        self.addCleanup(self.browser.close)

    def check_page(self, page, width):
        self.assertEqual(self.browser.open(page, width), [], page)
        if SCREENSHOTS:
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            self.browser.screenshot(SCREENSHOTS / f"{page.stem}-{width}.png")
        self.assertEqual(self.browser.value(TOO_WIDE), [], f"{page}, {width} pixels")

    def test_the_report_draws_its_charts(self):
        two = f"--comm local --ranks 2 --data {self.text}"
        for name, flags in (
            ("adam", "--optimizer adam"),
            ("onebit_adam", "--optimizer onebit_adam --save-every 15 --keep-last 0"),
            ("resumed", "--optimizer onebit_adam --resume {}"),
        ):
            saved = self.folder / "onebit_adam/checkpoints/step-0000000015"
            flags = flags.format(saved) + f" --out {self.folder / name}"
            self.run_program(f"{SMALL} --quiet {two} {flags}".split())
        runs = [str(self.folder / n) for n in ("adam", "onebit_adam", "resumed")]
        self.run_program(["--compare", *runs, "--out", str(self.folder)])
        for width in (1200, 900):
            self.check_page(self.folder / "report.html", width)
            marks = self.browser.value(FIGURES)
            self.assertEqual(len(marks), 3, "loss by step, by bytes and by time")
            # At least a line and a dot for each run.
            self.assertGreaterEqual(min(marks), 6)

    def test_tables_of_the_site_fit(self):
        for name in ("index", "docs/guide/slow-networks"):
            for width in (1200, 900):
                self.check_page(SITE / f"{name}.html", width)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    train_gpt_runs.PROGRAM, SITE = sys.argv[1], Path(sys.argv[2])
    SCREENSHOTS = Path(sys.argv[3]) if len(sys.argv) == 4 else None
    unittest.main(argv=sys.argv[:1], verbosity=2)

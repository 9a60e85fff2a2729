#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens the pages that people look at in a browser: the report of a comparison, made as
./demo makes it, and pages of the site.

usage: pages_test.py TRAIN_GPT SITE [SCREENSHOTS]

SITE is the folder that scripts/build_docs makes. Pictures of all pages are put into the
folder SCREENSHOTS.
"""

import subprocess
import sys
import unittest
from pathlib import Path

import train_gpt_runs
from browser import Browser
from train_gpt_runs import QUIET, SMALL, Runs

ROOT = Path(__file__).resolve().parents[2]
SITE = Path()
SCREENSHOTS = None
# A table fits if neither it nor what it holds is wider than the place that it has.
TOO_WIDE = """[...document.querySelectorAll("table")].filter((table) =>
  table.scrollWidth > table.clientWidth + 1
  || table.offsetWidth > table.parentElement.clientWidth + 1
  || table.getBoundingClientRect().right > document.documentElement.clientWidth
).map((table) => table.textContent.trim().slice(0, 60))"""
PAGE_WIDTH = "document.documentElement.scrollWidth"
# Counts the curves that each figure has, and lists the texts that it shows within its
# frame. Lines of the grid are straight and light.
FIGURES = """[...document.querySelectorAll("figure svg")].map((svg) => {
  const frame = svg.getBoundingClientRect();
  const curves = [...svg.querySelectorAll("path[clip-path]")].filter((line) =>
    getComputedStyle(line).stroke !== "rgb(228, 227, 223)" && line.getTotalLength() > 10);
  const texts = [...svg.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.width > 1 && box.height > 1
      && box.left >= frame.left - 1 && box.right <= frame.right + 1
      && box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1;
  });
  return {curves: curves.length, texts: texts.map((text) => text.textContent)};
})"""


class Pages(Runs):
    def setUp(self):
        super().setUp()
        self.browser = Browser()
        self.addCleanup(self.browser.close)

    def open_page(self, page, width):
        self.assertEqual(self.browser.open(page, width), [], page)
        if SCREENSHOTS:
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            self.browser.screenshot(SCREENSHOTS / f"{page.stem}-{width}.png")

    def test_the_report_shows_its_figures(self):
        two = f"--ranks 2 --data {self.text}"
        for name, flags in (
            ("adam", "--optimizer adam"),
            ("onebit_adam", "--optimizer onebit_adam --save-every 15"),
            ("resumed", "--optimizer onebit_adam --resume {}"),
        ):
            saved = self.folder / "onebit_adam/checkpoints/step-0000000015"
            flags = flags.format(saved) + f" --out {self.folder / name}"
            self.run_program(f"{SMALL} {QUIET} {two} {flags}".split())
        runs = [self.folder / n for n in ("adam", "onebit_adam", "resumed")]
        command = [ROOT / ".venv/bin/python", ROOT / "examples/train_gpt/report.py"]
        subprocess.run([*command, *runs, "--out", self.folder], check=True)
        names = {"adam", "onebit_adam (2)", "onebit_adam (3), resumed at step 15"}
        for width in (1280, 400):
            self.open_page(self.folder / "report.html", width)
            self.assertLessEqual(self.browser.value(PAGE_WIDTH), width)
            figures = self.browser.value(FIGURES)
            self.assertEqual(len(figures), 4)
            for figure in figures:
                self.assertEqual(figure["curves"], len(runs), figure)
                self.assertLessEqual(names, set(figure["texts"]))

    def test_tables_of_the_site_fit(self):
        for name in ("index", "docs/guide/slow-networks"):
            for width in (1200, 900):
                page = SITE / f"{name}.html"
                self.open_page(page, width)
                self.assertEqual(
                    self.browser.value(TOO_WIDE), [], f"{page}, {width} pixels"
                )


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    train_gpt_runs.PROGRAM, SITE = sys.argv[1], Path(sys.argv[2])
    SCREENSHOTS = Path(sys.argv[3]) if len(sys.argv) == 4 else None
    unittest.main(argv=sys.argv[:1], verbosity=2)

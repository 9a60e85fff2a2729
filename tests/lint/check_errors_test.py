#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that check_errors.py finds messages, and stale ones."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECK = Path(__file__).with_name("check_errors.py")
SOURCE = """// the owner is asleep
void f() {
  fail(fmt::format("parameter '{}' was {} after "
                   "the engine was made", name, how));
  require(rank >= 0, "rank", fmt::format("below {}", n), rank);
  reject("{} must be {}, got {}");
  say("duplicate key \\"{}\\"");
}
"""


def run_on(*messages):
    """Exit code and output of the check on a page with these messages."""
    page = "| message | meaning |\n|---|---|\n"
    page += "".join(f"| `{message}` | … |\n" for message in messages)
    with tempfile.TemporaryDirectory() as root:
        for name, text in (("docs/errors.md", page), ("src/a.cpp", SOURCE)):
            file = Path(root, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, CHECK, root],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout


class CheckErrors(unittest.TestCase):
    def test_finds_what_the_sources_say(self):
        for message in (
            "parameter '…' was … after the engine was made",
            "rank must be below …, got …",
            "NAME must be RANGE, got VALUE",
            'duplicate key "…"',
        ):
            self.assertEqual(run_on(message), (0, ""))

    def test_refuses_what_they_do_not_say(self):
        for message in (
            "parameter '…' was … after its engine was made",
            "rank must be above …, got …",
            "the owner is asleep",
            "…",
        ):
            status, output = run_on("rank must be below …, got …", message)
            self.assertEqual(status, 1)
            self.assertIn("docs/errors.md:4: ", output)

    def test_refuses_a_page_without_messages(self):
        self.assertEqual(run_on()[0], 1)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that check_errors.py finds messages, and those that no source says."""

import unittest

import planted_tree

SOURCE = """// the owner is asleep
void f() {
  fail(fmt::format("parameter '{}' was {} after "
                   "the engine was made", name, how));
  require(rank >= 0, "rank", fmt::format("below {}", n), rank);
  reject("{} must be {}, got {}");
  say("duplicate key \\"{}\\"");
}
"""

PYTHON = '''"""The owner is asleep."""

def f(name):
    """the reader is asleep"""
    raise InvalidArgument(f"parameter '{name}' lies on {where(name)}: " "move it")
'''


def table_of(messages):
    rows = "".join(f"| `{message}` | … |\n" for message in messages)
    return "| message | meaning |\n|---|---|\n" + rows


def run_on(*messages):
    """Exit code and output of the check on a page with these messages."""
    files = {
        "docs/errors.md": table_of(messages),
        "src/a.cpp": SOURCE,
        "python/thinwire/a.py": PYTHON,
    }
    return planted_tree.run_on("check_errors.py", files)


class CheckErrors(unittest.TestCase):
    def test_finds_what_the_sources_say(self):
        for message in (
            "parameter '…' was … after the engine was made",
            "rank must be below …, got …",
            "NAME must be RANGE, got VALUE",
            'duplicate key "…"',
            "parameter '…' lies on …: move it",
        ):
            self.assertEqual(run_on(message), (0, ""))

    def test_refuses_what_they_do_not_say(self):
        for message in (
            "parameter '…' was … after its engine was made",
            "rank must be above …, got …",
            "the owner is asleep",
            "The owner is asleep",
            "the reader is asleep",
            "…",
        ):
            status, output = run_on("rank must be below …, got …", message)
            self.assertEqual(status, 1)
            self.assertIn("docs/errors.md:4: ", output)

    def test_refuses_a_page_without_messages(self):
        self.assertEqual(run_on()[0], 1)


if __name__ == "__main__":
    unittest.main()

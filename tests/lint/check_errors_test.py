#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that check_errors.py finds messages, stale ones and missing ones."""

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

def f(name, cause):
    """the reader is asleep"""
    if cause:
        raise Unavailable(str(cause))
    if not name:
        raise TypeError(f"name must be a text, got {name!r}")
    raise InvalidArgument(
        f"parameter '{name}' lies on {where(name)}: "
        "move it" + (", soon" if name else "")
    )
'''


def table_of(messages):
    rows = "".join(f"| `{message}` | … |\n" for message in messages)
    return "| message | meaning |\n|---|---|\n" + rows


def run_on(*messages, python=None):
    """Exit code and output of the check on a page with these messages; and, if there are
    any of `python`, on a package, whose section of the page has those."""
    files = {"docs/errors.md": table_of(messages), "src/a.cpp": SOURCE}
    if python is not None:
        files["docs/errors.md"] += "\n### python\n\n" + table_of(python)
        files["python/thinwire/a.py"] = PYTHON
    return planted_tree.run_on("check_errors.py", files)


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

    def test_finds_what_python_raises(self):
        for message in ("parameter '…' lies on …: move it…", "parameter '…' lies on …"):
            self.assertEqual(run_on("duplicate key …", python=[message]), (0, ""))

    def test_refuses_documentation_of_python(self):
        for message in ("The owner is asleep", "the reader is asleep"):
            known = "parameter '…' lies on …"
            status, output = run_on("duplicate key …", python=[known, message])
            self.assertEqual(status, 1)
            self.assertIn("docs/errors.md:10: ", output)

    def test_finds_what_the_page_lacks(self):
        place = "python/thinwire/a.py:9: "
        # What other sections have is not of Python.
        for page, python in (
            (["duplicate key …"], []),
            (["duplicate key …"], ["name must be …, got …"]),
            (["parameter '…' lies on …"], []),
        ):
            status, output = run_on(*page, python=python)
            self.assertEqual(status, 1)
            self.assertIn(place + "not in docs/errors.md: `parameter '…'", output)
            self.assertEqual(output.count("a.py:"), 1)

    def test_refuses_a_page_without_messages(self):
        self.assertEqual(run_on()[0], 1)


if __name__ == "__main__":
    unittest.main()

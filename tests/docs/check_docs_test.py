#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_docs.py finds what it says it finds."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
import check_docs

EXAMPLE = "// SPDX-License-Identifier: Apache-2.0\nint a;\nint b;\n"
README = "# Title\n\n```cpp\nint a;\nint b;\n```\n\n[guide](docs/guide.md#two-words)\n"
GUIDE = "# Guide\n\n## Two `words`\n\n```cpp\nint b;\n```\n\n[up](../README.md)\n"


class CheckDocs(unittest.TestCase):
    def problems(self, readme=README, guide=GUIDE):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "examples").mkdir()
            (root / "docs").mkdir()
            (root / "examples/a.cpp").write_text(EXAMPLE)
            (root / "README.md").write_text(readme)
            (root / "docs/guide.md").write_text(guide)
            return check_docs.problems(root)

    def expect(self, text, **documents):
        found = self.problems(**documents)
        self.assertEqual(len(found), 1, found)
        self.assertIn(text, found[0])

    def test_finds_nothing_in_what_is_right(self):
        self.assertEqual(self.problems(), [])

    def test_readme_shows_whole_examples(self):
        self.expect("-int c;", readme=README.replace("int b;", "int c;"))
        self.expect("+int b;", readme=README.replace("int b;\n", ""))
        self.expect("has no C++ block", readme="# Title\n")

    def test_guides_show_excerpts_of_whole_lines(self):
        self.expect("int c;", guide=GUIDE.replace("int b;", "int c;"))
        self.expect("nt b;", guide=GUIDE.replace("int b;", "nt b;"))

    def test_links_lead_to_files_and_headings(self):
        self.expect("no such file: docs/x.md", readme=README + "[x](docs/x.md)\n")
        self.expect("no such heading: #x", readme=README + "[x](#x)\n")
        self.expect(
            "no such heading: docs/guide.md#two-words",
            guide=GUIDE.replace("## Two", "## Three"),
        )

    def test_blocks_and_the_web_hold_no_links(self):
        self.assertEqual(
            self.problems(readme=README + "[x](https://x.org/y)\n```\n[x](y)\n```\n"),
            [],
        )


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that check_docs.py finds wrong blocks and links, and leaves right ones alone."""

import unittest
from typing import ClassVar

import planted_tree

EXAMPLE = "// SPDX-License-Identifier: Apache-2.0\nint a;\nint b;\n"
PYTHON = "# SPDX-License-Identifier: Apache-2.0\nc = 1\nd = 2\n"
README = "# Title\n\n```cpp\nint a;\nint b;\n```\n\n[guide](docs/guide.md#two-words)\n"
GUIDE = "# Guide\n\n## Two `words`\n\n```cpp\nint b;\n```\n\n```python\nd = 2\n```\n\n[up](../README.md)\n"


class CheckDocs(unittest.TestCase):
    examples: ClassVar[dict[str, str]] = {}

    def run_on(self, readme=README, guide=GUIDE):
        files = {
            "examples/a.cpp": EXAMPLE,
            "examples/python/c.py": PYTHON,
            "README.md": readme,
            "docs/guide.md": guide,
            **self.examples,
        }
        return planted_tree.run_on("check_docs.py", files)

    def expect(self, text, **documents):
        code, output = self.run_on(**documents)
        self.assertEqual(code, 1, output)
        self.assertIn(text, output)

    def test_leaves_alone_what_is_right(self):
        self.assertEqual(self.run_on(), (0, ""))

    def test_readme_has_a_cpp_block_and_at_most_100_lines(self):
        self.expect("has no C++ block", readme="# Title\n")
        longest = README + "\n" * (100 - len(README.splitlines()))
        self.assertEqual(self.run_on(readme=longest), (0, ""))
        self.expect("more than 100 lines", readme=longest + "\n")

    def test_cpp_blocks_are_excerpts_of_whole_lines(self):
        self.expect("-int c;", readme=README.replace("int b;", "int c;"))
        self.expect("-int c;", guide=GUIDE.replace("int b;", "int c;"))
        self.expect("-nt b;", guide=GUIDE.replace("int b;", "nt b;"))

    def test_python_blocks_are_excerpts_as_well(self):
        self.expect("-d = 3", guide=GUIDE.replace("d = 2", "d = 3"))
        self.expect("-e = 4", readme=README + "```python\ne = 4\n```\n")

    def test_blocks_of_c_and_rust_are_excerpts_as_well(self):
        for language, file in (("c", "c/a.c"), ("rust", "rust/a.rs")):
            readme = f"{README}```{language}\nint e;\n```\n"
            self.expect("-int e;", readme=readme)
            self.examples = {f"examples/{file}": "int e;\n"}
            self.assertEqual(self.run_on(readme=readme), (0, ""))

    def test_links_lead_to_files_and_headings(self):
        self.expect("no such file: docs/x.md", readme=README + "[x](docs/x.md)\n")
        self.expect("no such heading: #x", readme=README + "[x](#x)\n")
        self.expect(
            "no such heading: docs/guide.md#two-words",
            guide=GUIDE.replace("## Two", "## Three"),
        )

    def test_blocks_and_the_web_hold_no_links(self):
        more = "[x](https://x.org/y)\n```\n[x](y)\n```\n"
        self.assertEqual(self.run_on(readme=README + more), (0, ""))


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that check_prose.py finds what breaks its rules, and leaves the rest alone."""

import unittest

import planted_tree

PAGE = "docs/guide/a.md"
HEADER = "include/thinwire/core/a.h"
SOURCE = "apps/thinwire/a.cpp"
MODULE = "python/thinwire/comm/a.py"
WORDS = " ".join(["word"] * 24)


class CheckProse(unittest.TestCase):
    def expect(self, text, *problems, path=PAGE):
        """Line and beginning of each problem of a file, and no other one."""
        code, output = planted_tree.run_on("check_prose.py", {path: text})
        lines = output.splitlines()
        self.assertEqual(len(lines), len(problems), output)
        self.assertEqual(code, 1 if problems else 0)
        for line, (number, problem) in zip(lines, problems):
            self.assertTrue(line.startswith(f"{path}:{number}: {problem}"), line)

    def test_leaves_alone_what_is_right(self):
        self.expect(
            "# Title\n\nA rank sends (once). It waits (twice).\n\n* An item\n* is here.\n"
        )

    def test_a_sentence_has_at_most_25_words(self):
        self.expect(f"Last {WORDS}.\n")
        self.expect(f"\nOne last\n{WORDS}.\n", (2, "26 words"))
        self.expect(f"Short. One last {WORDS}: it. Short.\n", (1, "27 words"))
        self.expect(f"* item\n* one last {WORDS}\n* item\n", (2, "26 words"))

    def test_code_counts_as_a_word_and_the_target_of_a_link_not(self):
        self.expect(f"`a b c` {WORDS}.\n")
        self.expect(f"[Last](a/b-c.md#d e f) {WORDS}.\n")
        self.expect(f"[One last](a.md) {WORDS}.\n", (1, "26 words"))

    def test_a_sentence_has_one_parenthesis(self):
        self.expect("A rank (0) sends\n(once).\n", (1, "more than one parenthesis"))

    def test_no_sentence_begins_like_a_fragment(self):
        for word in ("Of", "As", "What", "Where", "Those", "Else", "Likewise,"):
            with self.subTest(word):
                found = (3, "begins like a fragment")
                likewise = ((3, "'Likewise'"),) if word == "Likewise," else ()
                self.expect(f"A.\n\n{word} a rank sends.\n", *likewise, found)
                self.expect(f"A.\n\n* A. {word} a rank.\n", *likewise, found)
        self.expect("Often a rank sends what others wait for.\n")

    def test_an_item_is_complete(self):
        for item in ("and …", "… and", "and ...", "a rank;", "a rank,"):
            with self.subTest(item):
                self.expect(f"* A rank.\n* {item}\n", (2, "a list item"))

    def test_no_term_that_has_a_plainer_one(self):
        for text in (
            "all but for one",
            "It goes\non.",
            "Exchanged by host.",
            "It pays.",
        ):
            self.expect(text + "\n", (1, "'"))
        self.expect("| a |\n|---|\n| late element |\n", (3, "'late element': inactive"))
        self.expect("## By host\n", (1, "'By host': hierarchical"))
        self.expect("A `by host` (see [it](a.md#by-host)).\n\n```\nby host\n```\n")

    def test_generated_text_is_left_out(self):
        for begin in ("begin", "short"):
            text = f"<!-- x: {begin} -->\nby host\n<!-- x: end -->\n\nby host\n"
            self.expect(text, (5, "'by host'"))

    def test_comments_of_a_header_are_read_and_code_is_not(self):
        comments = f"/// Calls by(host, home).\nint what;  // Last {WORDS}.\n"
        self.expect(f"{comments}char pay;\n// it\n", path=HEADER)
        self.expect(
            f"int by;\n\n/// One last\n/// {WORDS}.\nint x;  ///< By host.\n",
            (3, "26 words"),
            (5, "'By host'"),
            path=HEADER,
        )

    def test_comments_of_a_source_are_read_and_literals_are_not(self):
        code = 'char a[] = "\\" // By host.";'
        self.expect(f"// SPDX-License-Identifier: A\n// {WORDS}.\n", path=SOURCE)
        self.expect(f"{code}  // It is one.\nchar b = '\"';  // A.\n", path=SOURCE)
        self.expect(f"{code}  // By host.\n", (1, "'By host'"), path=SOURCE)
        self.expect("char b = '\"';  // By host.\n", (1, "'By host'"), path=SOURCE)

    def test_comments_are_complete_and_separate(self):
        for text in ("///< The same, doubled.", "// The same of x.", "///< And ..."):
            self.expect(f"int x;  {text}\n", (1, "a list item"), path=HEADER)
        self.expect("int x;  ///< X\n/// Y\nint y;  ///< The same.\n", path=HEADER)
        lines = f"int x;  ///< One\n        ///< last\nint y;  ///< {WORDS}.\n"
        self.expect(lines, path=HEADER)
        self.expect(lines.replace("int y;", "      "), (1, "26 words"), path=HEADER)

    def test_a_formula_of_a_comment_is_left_out(self):
        formula = "///   x = (a + b) / (c + d)\n"
        self.expect(f"/// Sets x:\n{formula}/// (once).\n", path=HEADER)
        more = (1, "more than one parenthesis")
        self.expect(f"/// Sets x:\n{formula.replace('   ', ' ')}", more, path=HEADER)

    def test_docstrings_are_read_and_code_is_not(self):
        code = f'x = "by host"  # Last {WORDS}, by host.\n'
        self.expect(f'"""Calls home(), a.marks()."""\n{code}', path=MODULE)
        self.expect(
            f'"""By host."""\n{code}"""One last\n{WORDS}."""\n\n\n'
            'class A:\n    x = 1\n    """Of A."""\n\n'
            '    def f():\n        """Runs.\n\n        It pays.\n        """\n',
            (1, "'By host'"),
            (3, "26 words"),
            (9, "begins like a fragment"),
            (14, "'pays'"),
            path=MODULE,
        )

    def test_an_argument_of_a_docstring_is_an_item_and_code_is_left_out(self):
        text = f'"""Runs.\n\n    by host\n\nx: one\n  last.\ny, z: {WORDS}.\n"""\n'
        self.expect(text, (7, "26 words"), path=MODULE)
        self.expect(text.replace(".\ny, z:", ""), (5, "27 words"), path=MODULE)
        self.expect('"""Runs.\n\nx: a rank;\ny: one\n"""\n', (3, "a list"), path=MODULE)


if __name__ == "__main__":
    unittest.main()

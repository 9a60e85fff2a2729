#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference that scripts/site extracts has the declarations and docstrings that are
there, the page of docs/conformance.json has its items, and the check of a built site
finds links that lead nowhere.
"""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "site"))

import api
import check
import conformance

HEADER = """#pragma once
#include <vector>
namespace thinwire::x {
/// Adds `a` to <b> on all
/// ranks.
template <class T>
[[nodiscard]] int add(const T& a, int b = int{1},
                      const char* text = "};");
/// Kinds.
enum class Kind {
  kOne,  ///< The first.
};
/// A pair:
///
///   a = b * c
class Pair final : public Base {
 public:
  explicit Pair(int a) : a_(a) {}

 private:
  int a_ = 0;
};
inline int twice(int a) {
  return 2 * a;
}
namespace detail {
int hidden();
}  // namespace detail
}  // namespace thinwire::x
"""

PACKAGE = {
    "__init__.py": '"""Top.\n\nText:\n\n    code()\n"""\nfrom .part import f as g\n__all__ = ["C", "g"]\nfrom .part import C\n',
    "part.py": '''class Base:
    def inherited(self, x: int = 1) -> int:
        """Comes from the base."""


class C(Base):
    """A class."""

    def method(self):
        """Does [it]."""

    def _private(self):
        """No."""


def f(a, *, b=2):
    """Returns a."""
''',
}


class Reference(unittest.TestCase):
    def test_has_the_declarations_of_a_header(self):
        found = {
            api.name_of(code): (comment, api.shown(code))
            for comment, code in api.declarations(HEADER)
        }
        self.assertEqual(list(found), ["add", "Kind", "Pair", "twice"])
        self.assertEqual(found["add"][0], "Adds `a` to <b> on all\nranks.")
        self.assertTrue(found["add"][1].endswith('const char* text = "};");'))
        self.assertIn("explicit Pair", found["Pair"][1])
        self.assertNotIn("a_ = 0", found["Pair"][1])
        self.assertEqual(found["twice"][1], "inline int twice(int a);")
        text = "\n".join(api.header(HEADER, "cpp", 3))
        self.assertIn("### add\n\nAdds `a` to \\<b> on all\nranks.", text)
        self.assertIn("A pair:\n\n```text\na = b * c\n```\n", text)

    def test_has_every_declaration_of_the_c_header(self):
        root = Path(__file__).resolve().parents[2]
        text = (root / "include/thinwire/thinwire.h").read_text()
        page = "\n".join(api.header(text, "c", 2))
        self.assertEqual(page.count("THINWIRE_API "), text.count("\nTHINWIRE_API "))
        self.assertIn("## thinwire_log_function\n", page)

    def test_has_the_public_names_of_a_package(self):
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root, "p")
            folder.mkdir()
            for name, text in PACKAGE.items():
                (folder / name).write_text(text)
            text = "\n".join(api.Package(folder).page("p"))
        heads = [line for line in text.splitlines() if line.startswith("#")]
        self.assertEqual(
            heads, ["# p", "## C", "### C.method", "### C.inherited", "## g"]
        )
        self.assertIn("inherited(self, x: int=1) -> int", text)
        self.assertIn("```python\ncode()\n```", text)
        self.assertIn("Does \\[it].", text)


class Conformance(unittest.TestCase):
    def test_the_page_has_every_item_and_counts_them(self):
        adds = {"item": "adds", "place": "`a.cpp`", "tests": ["A.*"], "state": "done"}
        gone = {**adds, "item": "halves", "tests": [], "state": "declined"}
        one = {"id": "1", "item": "one", "tests": ["b"], "note": "on CPUs"}
        content = {
            "introduction": ["Items."],
            "of_descriptions": [],
            "of_practice": [],
            "descriptions": [
                {"title": "Adding", "items": [adds, {**gone, "note": "Nobody does."}]}
            ],
            "practice": [{"title": "Sums", "items": [one], "after": ["The end."]}],
        }
        page = conformance.page(json.dumps(content))
        self.assertTrue(page.startswith("# Conformance\n\nItems.\n"))
        for row in (
            "| Adding | 2 | 1 | 0 | 0 | 1 |",
            "| adds | yes | `a.cpp` | `A.*` |",
            "| halves | declined | `a.cpp` | Nobody does. |",
            "| 1 | one | `b`; on CPUs |",
        ):
            self.assertIn(f"\n{row}\n", page)
        self.assertTrue(page.endswith("|\n\nThe end.\n"))


class Site(unittest.TestCase):
    def problems(self, page):
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root).resolve()
            (folder / "index.html").write_text(
                '<h1 id="a"><a href="sub/p.html">p</a></h1>'
            )
            (folder / "sub").mkdir()
            (folder / "sub" / "p.html").write_text(page)
            return list(check.problems(folder))

    def test_links_lead_to_pages_and_anchors(self):
        right = '<a href="../index.html#a"></a><a href="https://x.org"></a>'
        self.assertEqual(self.problems(right), [])
        gone = self.problems(right + '<a href="no.html"></a>')
        self.assertEqual(gone, ["sub/p.html: no such file: no.html"])
        anchor = self.problems(right + '<a href="../index.html#b"></a>')
        self.assertEqual(anchor, ["sub/p.html: no such anchor: ../index.html#b"])

    def test_every_page_leads_back(self):
        self.assertEqual(self.problems("<p></p>"), ["sub/p.html: no link to the index"])


if __name__ == "__main__":
    unittest.main()

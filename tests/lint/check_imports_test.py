#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that check_imports.py can fail."""

import unittest

import planted_tree


def run_on(modules):
    """Exit code and output of the check on modules of the package by path."""
    files = {f"python/thinwire/{path}": text for path, text in modules.items()}
    return planted_tree.run_on("check_imports.py", files)


class CheckImports(unittest.TestCase):
    def refuses(self, modules, because):
        status, output = run_on(modules)
        self.assertEqual(status, 1, output)
        self.assertIn(because, output)

    def test_refuses_a_folder_to_the_right(self):
        because = "thinwire.comm.a may not import thinwire.optim.b"
        for code in ("from ..optim import b", "from ..optim.b import name"):
            self.refuses({"comm/a.py": code, "optim/b.py": ""}, because)

    def test_refuses_a_circle(self):
        a = "from . import b"
        for b in ("from .a import name", "def f():\n    from . import a"):
            self.refuses({"a.py": a, "b.py": b}, "import circle")

    def test_accepts_imports_for_types_alone(self):
        b = "if TYPE_CHECKING:\n    from . import a"
        self.assertEqual(run_on({"a.py": "from . import b", "b.py": b}), (0, ""))

    def test_accepts_a_folder_to_the_left(self):
        modules = {
            "__init__.py": "",
            "comm/a.py": "",
            "optim/b.py": "from ..comm import a",
        }
        self.assertEqual(run_on(modules), (0, ""))

    def test_refuses_an_empty_tree(self):
        self.assertEqual(run_on({})[0], 1)


if __name__ == "__main__":
    unittest.main()

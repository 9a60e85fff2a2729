#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that check_conformance.py finds names and runs that are wrong."""

import json
import unittest

from planted_tree import PlantedTree

ITEM = {
    "item": "it adds",
    "place": "`src/add.cpp`",
    "tests": ["Add.*"],
    "state": "done",
}
PYTEST = "<testsuites><testsuite>{}</testsuite></testsuites>"


class CheckConformance(PlantedTree):
    def setUp(self):
        super().setUp()
        self.plant("src/add.cpp", "")
        self.plant("tests/add_test.cpp", "TEST_P(Add, Sums) {}\nTEST(Add, Wraps) {}\n")
        self.plant("python/tests/test_add.py", "def test_add() -> None: ...\n")
        self.plant("tests/CMakeLists.txt", "thinwire_script_test(\n  adds COMMAND a)\n")

    def plant_list(self, **changes):
        content = {
            "descriptions": [{"title": "Adding", "items": [{**ITEM, **changes}]}],
            "practice": [
                {
                    "title": "Sums",
                    "items": [
                        {"id": "1", "item": "one", "tests": ["test_add", "adds"]}
                    ],
                }
            ],
        }
        self.plant("docs/conformance.json", json.dumps(content))

    def test_leaves_alone_what_is_right(self):
        self.plant_list()
        self.expect("conformance")
        self.plant_list(state="declined", note="Nobody adds.", tests=[])
        self.expect("conformance")

    def test_tests_files_and_reasons_are_there(self):
        for said, changes in (
            ("no such test: Add.Divides", {"tests": ["Add.Divides"]}),
            ("no such test: Sub.*", {"tests": ["Sub.*"]}),
            ("no such test: test_sub", {"tests": ["test_sub"]}),
            ("no such file: src/sub.cpp", {"place": "`src/sub.cpp`"}),
            ("neither a test nor a sentence", {"tests": []}),
            ("missing without a sentence", {"state": "missing"}),
            ("partly without a sentence", {"state": "partly", "note": "and so on"}),
        ):
            with self.subTest(said):
                self.plant_list(**changes)
                self.expect("conformance", f"Adding: it adds: {said}")

    def plant_results(self, gtest="", pytest="", script="run", options=()):
        self.plant(
            "results/ctest.xml",
            f'<testsuite><testcase name="add_test" status="run"/>'
            f'<testcase name="adds" status="{script}"/></testsuite>',
        )
        self.plant("results/add_test.xml", PYTEST.format(gtest))
        self.plant("pytest/pytest.xml", PYTEST.format(pytest))
        folders = [self.root / "results", self.root / "pytest", self.root / "none"]
        arguments = [*options, "--ran", *folders, "--", self.root]
        return self.check("conformance", *arguments)

    def test_every_named_test_has_passed(self):
        self.plant_list()
        one = '<testcase classname="All/Add" name="Sums/0">{}</testcase>'
        other = '<testcase classname="tests.test_add" name="test_add[2]"/>'
        skipped = one.format('<skipped message="no"/>')
        all_well = "3 tests are named: 3 passed, 0 did not run\n"
        self.assertEqual(self.plant_results(one.format(""), other), (0, all_well))
        for wanted, gtest, pytest, script in (
            ("failed: Add.*\n", one.format("<failure/>"), other, "run"),
            ("skipped: Add.*\n", skipped, other, "run"),
            ("failed: adds\n", one.format(""), other, "fail"),
            ("not run: test_add\n", one.format(""), "", "run"),
        ):
            with self.subTest(wanted):
                code, output = self.plant_results(gtest, pytest, script)
                self.assertEqual(code, 1)
                self.assertIn(f"{wanted}3 tests are named: 2 passed", output)

    def test_a_part_of_the_tests_may_not_have_run(self):
        self.plant_list()
        one = '<testcase classname="All/Add" name="Sums/0">{}</testcase>'
        partial = ["--partial"]
        code, output = self.plant_results(one.format(""), options=partial)
        said = "3 tests are named: 2 passed, 1 did not run\n"
        self.assertEqual((code, output), (0, said))
        code, output = self.plant_results(one.format("<error/>"), options=partial)
        self.assertEqual((code, output[:13]), (1, "failed: Add.*"))


if __name__ == "__main__":
    unittest.main()

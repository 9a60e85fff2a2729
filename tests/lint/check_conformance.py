#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks docs/conformance.json, of which scripts/build_docs makes a page.

usage: check_conformance.py [[--partial] --ran RESULTS... --] [ROOT]

Without an option: every path must exist, and every test must be in the sources. With
--ran: every test must have passed according to RESULTS, folders that
scripts/count_tests reads; with --partial a test may also not have run. Prints how many
passed and how many did not run. A test is named as GoogleTest (`Suite.Name`, where *
stands for any text), pytest (`test_name`) or CTest names it.
"""

import argparse
import fnmatch
import importlib.machinery
import importlib.util
import json
import re
import sys
from pathlib import Path

GTEST = re.compile(
    r"\b(?:TEST|TEST_F|TEST_P|TYPED_TEST|RC_GTEST_PROP)\(\s*(\w+),\s*(\w+)"
)
PYTEST = re.compile(r"^def (test_\w+)", re.MULTILINE)
CTEST = re.compile(r"\b(?:thinwire_\w*test|add_test)\(\s*(?:NAME\s+)?([a-z]\w+)")
CODE = re.compile(r"`([^`]+)`")
PATH = re.compile(r"(?:[\w.-]+/)+[\w.-]+")


def items_of(content):
    for key in ("descriptions", "practice"):
        for part in content[key]:
            for item in part["items"]:
                yield part["title"], item


def tests_in_sources(root):
    """Returns the names of all tests, as `docs/conformance.json` may name them."""
    found = set()
    for file in (root / "tests").rglob("*.cpp"):
        found |= {f"{suite}.{name}" for suite, name in GTEST.findall(file.read_text())}
    for file in (root / "python" / "tests").rglob("test_*.py"):
        found |= set(PYTEST.findall(file.read_text()))
    for file in (root / "tests").rglob("CMakeLists.txt"):
        found |= set(CTEST.findall(file.read_text()))
    return found


def matches(name, names):
    return fnmatch.filter(names, name) if "*" in name else [name] * (name in names)


def problems(root, content):
    known = tests_in_sources(root)
    for title, item in items_of(content):
        where = f"{title}: {item['item']}"
        for name in item["tests"]:
            if not matches(name, known):
                yield f"{where}: no such test: {name}"
        place = item.get("place", "")
        for path in [p for code in CODE.findall(place) for p in PATH.findall(code)]:
            if not (root / path).exists():
                yield f"{where}: no such file: {path}"
        if item.get("state", "done") == "done":
            if not item["tests"] and not item.get("note"):
                yield f"{where}: neither a test nor a sentence"
        elif not item.get("note", "").endswith("."):
            yield f"{where}: {item['state']} without a sentence that says why"


def outcomes_of(folders):
    """Returns the outcomes of all tests that have run, by name."""
    script = Path(__file__).resolve().parents[2] / "scripts" / "count_tests"
    loader = importlib.machinery.SourceFileLoader("count_tests", str(script))
    spec = importlib.util.spec_from_loader("count_tests", loader)
    count_tests = importlib.util.module_from_spec(spec)
    loader.exec_module(count_tests)
    found = {}
    there = [folder for folder in folders if folder.is_dir()]
    for folder in there:
        for full, outcome, _ in count_tests.outcomes(folder):
            name = full.rpartition(": ")[2]
            # Of a parameterized suite: INSTANCE/SUITE.NAME/NUMBER, SUITE/TYPE.NAME.
            suite, _, case = name.rpartition(".")
            parts = [part for part in suite.split("/") if not part.isdigit()]
            case = re.split(r"[\[/]", case)[0]
            if suite and not case.startswith("test_"):
                case = f"{parts[-1]}.{case}"
            found.setdefault(case, []).append(outcome)
    return found


def not_passed(content, found):
    """Yields each named test that has not passed, and how it ended: "failed", "skipped"
    or "not run"."""
    for name in sorted(
        {name for _, item in items_of(content) for name in item["tests"]}
    ):
        ended = {outcome for hit in matches(name, found) for outcome in found[hit]}
        if "failed" in ended or "passed" not in ended:
            order = ("failed", "skipped")
            yield name, next((o for o in order if o in ended), "not run")


def check_ran(content, folders, partial):
    named = {name for _, item in items_of(content) for name in item["tests"]}
    bad = dict(not_passed(content, outcomes_of(folders)))
    not_run = [name for name, how in bad.items() if how == "not run"]
    wrong = {name: how for name, how in bad.items() if how != "not run" or not partial}
    for name, how in wrong.items():
        print(f"{how}: {name}")
    print(
        f"{len(named)} tests are named: {len(named) - len(bad)} passed, "
        f"{len(not_run)} did not run"
    )
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partial", action="store_true")
    parser.add_argument("--ran", type=Path, nargs="+", metavar="RESULTS")
    parser.add_argument(
        "root", type=Path, nargs="?", default=Path(__file__).resolve().parents[2]
    )
    given = parser.parse_args()
    content = json.loads((given.root / "docs" / "conformance.json").read_text())
    if given.ran:
        return check_ran(content, given.ran, given.partial)
    found = list(problems(given.root, content))
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

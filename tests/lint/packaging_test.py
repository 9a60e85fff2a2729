#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recipes of packaging/ have CMake's version, and set options that exist. Guides
name the packages of that version.
"""

import json
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import wheel_readme

RECIPE = (ROOT / "packaging/conda-forge/recipe.yaml").read_text()
PORT = (ROOT / "packaging/vcpkg/portfile.cmake").read_text()
CMAKE = (ROOT / "CMakeLists.txt").read_text()
VERSION = re.search(r"^  VERSION (\S+)$", CMAKE, re.MULTILINE)[1]
LIBRARIES = {"FMT", "HIGHWAY", "NLOHMANN_JSON", "XXHASH"}


HOMEPAGE = re.search(r'HOMEPAGE_URL "(\S+)"', CMAKE)[1]


class Recipes(unittest.TestCase):
    def test_have_the_homepage_of_the_project(self):
        port = json.loads((ROOT / "packaging/vcpkg/vcpkg.json").read_text())
        self.assertEqual(port["homepage"], HOMEPAGE)
        self.assertTrue(port["maintainers"])
        self.assertIn(f"\n  homepage: {HOMEPAGE}\n", RECIPE)
        self.assertIn("\n  recipe-maintainers: [", RECIPE)
        wheel = (ROOT / "pyproject.toml").read_text()
        urls = wheel.partition("[project.urls]\n")[2].partition("\n\n")[0]
        self.assertIn(f'Homepage = "{HOMEPAGE}"\n', urls)
        self.assertEqual(urls.count("https://"), urls.count(HOMEPAGE))

    def test_have_the_version_of_the_project(self):
        port = json.loads((ROOT / "packaging/vcpkg/vcpkg.json").read_text())
        self.assertEqual(port["version"], VERSION)
        self.assertIn(f'\n  version: "{VERSION}"\n', RECIPE)

    def test_the_readme_of_wheels_has_absolute_links(self):
        made = wheel_readme.dynamic_metadata("readme")
        links = re.findall(r"\]\(([^)]+)\)", made["text"])
        self.assertGreater(len(links), 20)
        self.assertEqual([one for one in links if not one.startswith("https:")], [])

    def test_guides_name_the_library_of_this_version(self):
        series = VERSION.rpartition(".")[0]
        for name in ("c", "cmake"):
            text = (ROOT / f"docs/guide/{name}.md").read_text()
            found = re.findall(r"\blibthinwire(?:\.so\.)?(\d+\.\d+)", text)
            self.assertEqual(set(found), {series}, name)

    def test_set_options_that_exist(self):
        options = (ROOT / "cmake/options.cmake").read_text()
        known = set(re.findall(r"THINWIRE_BUILD_\w+", options))
        known |= {"THINWIRE_WITH_MPI", "THINWIRE_WITH_TORCH"}
        known |= {f"THINWIRE_NOTICE_{name}" for name in LIBRARIES}
        for text in (RECIPE, PORT):
            used = set(re.findall(r"-D ?(THINWIRE_\w+)", text))
            self.assertGreater(len(used), 3)
            self.assertEqual(used - known, set())


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares THIRD_PARTY_NOTICES with the headers that the installed targets include.

usage: notices_test.py BUILD_DIR
"""

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

BUILD = Path(sys.argv[1]).absolute()
ROOT = Path(__file__).resolve().parents[2]
# Folders whose objects are passed on; what they generate lies in the build.
BUILT = ("src", "apps", "examples/train_gpt")
TREE = tuple(f"{top / part}/" for top in (ROOT, BUILD) for part in (*BUILT, "include"))
# Our sources as CMake joins them, in the build directory.
JOINED = re.compile(re.escape(f"{BUILD}/") + r".*/Unity/unity_\d+_cxx\.cxx$")
# Headers of others, and whose they are; "": of nobody whose code is passed on.
OWNERS = {
    r"/hwy/": "Highway",
    r"/fmt/": "fmt",
    r"/nlohmann/": "nlohmann-json",
    r"/xxh[^/]*$": "xxHash",
    r"/CLI/": "CLI11",
    r"/torch/include/": "LibTorch",
    r"/(open)?mpi[^/]*/|/mpi[^/]*\.h$": "",
    # The compiler's, the C library's and Linux's.
    r"^/usr/lib/gcc/|^/usr/include/(c\+\+|[^/]*-linux-gnu/|linux|asm)": "",
    r"^/usr/include/(bits|sys|net|netinet|arpa)/|^/usr/include/[^/]*$": "",
}


def headers():
    """All that the objects of libraries and programs include, outside this tree."""
    listed = subprocess.run(
        ["ninja", "-C", str(BUILD), "-t", "deps"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = set()
    for block in listed.split("\n\n"):
        target, *paths = block.split("\n")
        if target.startswith(tuple(f"{part}/" for part in BUILT)):
            found |= {os.path.normpath(BUILD / path.strip()) for path in paths if path}
    return {
        path for path in found if not path.startswith(TREE) and not JOINED.match(path)
    }


def owner(path):
    for pattern, name in OWNERS.items():
        if re.search(pattern, path):
            return name
    return None


class Notices(unittest.TestCase):
    def test_every_library_that_is_compiled_in_has_its_notice(self):
        owners = {path: owner(path) for path in headers()}
        unknown = [path for path, name in owners.items() if name is None]
        self.assertEqual(unknown, [], "whose are they? See cmake/notices.cmake")
        wanted = {name for name in owners.values() if name}
        self.assertLessEqual({"Highway", "fmt", "nlohmann-json", "xxHash"}, wanted)
        rule = "=" * 78
        parts = re.split(
            rf"^{rule}\n(.+)\n{rule}\n",
            (BUILD / "THIRD_PARTY_NOTICES").read_text(),
            flags=re.MULTILINE,
        )
        notices = dict(zip(parts[1::2], parts[2::2], strict=True))
        self.assertEqual(set(notices), wanted)
        for name, text in notices.items():
            self.assertRegex(text, r"(?i)copyright", name)
            self.assertRegex(text, r"(?i)licen[sc]e|redistribution", name)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])

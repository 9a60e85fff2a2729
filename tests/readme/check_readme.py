#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every C++ block of README.md is an example, word for word.

The examples are compiled and run against an installed tree by tests/install,
so what README shows is compiled and run as well. A block equals a whole file
of examples/ without its license line.

usage: check_readme.py [ROOT]
"""

import difflib
import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(?:cpp|c\+\+|cc)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LICENSE = re.compile(r"\A// SPDX-License-Identifier:[^\n]*\n")


def problems(readme, examples):
    """One text per C++ block that is no example, or one if there is none."""
    blocks = BLOCK.findall(readme)
    if not blocks:
        return ["README.md has no C++ block"]
    found = []
    for block in blocks:
        if block in examples.values():
            continue
        name, text = max(
            examples.items(),
            key=lambda item: difflib.SequenceMatcher(None, block, item[1]).ratio(),
            default=("nothing", ""),
        )
        diff = difflib.unified_diff(
            block.splitlines(), text.splitlines(), "README.md", name, lineterm=""
        )
        found.append("\n".join(diff))
    return found


def main():
    default = Path(__file__).resolve().parents[2]
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    examples = {
        file.relative_to(root).as_posix(): LICENSE.sub("", file.read_text())
        for file in sorted((root / "examples").glob("*.cpp"))
    }
    found = problems((root / "README.md").read_text(), examples)
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the documents show and where they point.

The language of a block in README.md and docs/ tells whether it is tested: a block of
C++ is an excerpt of a file of examples/, and one of Python, C or Rust of
examples/python/, examples/c/ or examples/rust/. tests/install compiles and runs the
examples of C++ and C against an installed tree, python/tests those of Python, and
tests/c those of Rust. So what the documents show is run as well. README.md has at most
100 lines, CHANGELOG.md 60 for each version, and bench/README.md 30 KB. A link leads to a file or folder of this
repository, and to a heading that is there. Links to the web are not followed. Below its
title, which has its number, a page of docs/design/ has the lines
"* Date: YYYY-MM-DD" and "* Status: holds (YYYY-MM-DD)" or "* Status: replaced by
[NNNN](PAGE)"; text may follow after a comma or semicolon.

usage: check_docs.py [ROOT]
"""

import difflib
import re
import sys

import check_sources

BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CPP = ("cpp", "c++", "cc")
# Languages of a block, and the examples that it is an excerpt of.
EXCERPTS = (
    (CPP, "*.cpp"),
    (("python", "py"), "python/*.py"),
    (("c",), "c/*.c"),
    (("rust",), "rust/*.rs"),
)
LICENSE = re.compile(r"\A(?://|#) SPDX-License-Identifier:[^\n]*\n")
LINK = re.compile(r"\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?)\s*$", re.MULTILINE)
DECISION = re.compile(
    r"# (?P<number>\d{4}): [^\n]+\n\n\* Date: \d{4}-\d\d-\d\d\n"
    r"\* Status: (holds \(\d{4}-\d\d-\d\d\)|"
    r"replaced by \[(?P<by>\d{4})\]\((?P=by)-[^)]+\))[,;\n]"
)
README_LINES = 100
VERSION_LINES = 60
BENCH_BYTES = 30_000
NOT_OURS = {".git", ".venv", "build", "out"}


def blocks(text, languages):
    return [body for name, body in BLOCK.findall(text) if name.strip() in languages]


def is_excerpt(block, examples):
    return any("\n" + block in "\n" + code for code in examples.values())


def nearest(block, name, examples):
    """A diff to the example that resembles the block most."""
    example, text = max(
        examples.items(),
        key=lambda item: difflib.SequenceMatcher(None, block, item[1]).ratio(),
        default=("nothing", ""),
    )
    diff = difflib.unified_diff(
        block.splitlines(), text.splitlines(), name, example, lineterm=""
    )
    return "\n".join(diff)


def block_problems(name, text, examples):
    """One text per block of a document that is no example."""
    found = []
    for languages, known in examples:
        for block in blocks(text, languages):
            if not is_excerpt(block, known):
                found.append(nearest(block, name, known))
    return found


def anchors(text):
    """The anchors of a document's headings, as GitHub forms them."""
    text = BLOCK.sub("", text)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", h) for h in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in plain}


def link_problems(root, name, text):
    """One text per link of a document that leads nowhere."""
    found = []
    for link in LINK.findall(BLOCK.sub("", text)):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (root / name).parent / path if path else root / name
        headings = target.suffix == ".md" and target.exists() and target.read_text()
        if not target.exists():
            found.append(f"{name}: no such file: {link}")
        elif anchor and headings and anchor not in anchors(headings):
            found.append(f"{name}: no such heading: {link}")
    return found


def decision_problems(name, text):
    """One text if a page of docs/design/ does not begin with its date and status."""
    found = DECISION.match(text)
    if not found or not name.startswith(f"docs/design/{found['number']}-"):
        yield f"{name}: does not begin with number, date and status; see check_docs.py"


def changelog_problems(name, text):
    """One text per version that takes too many lines of the changelog."""
    for part in re.split("^## ", text, flags=re.MULTILINE)[1:]:
        version = part.partition("\n")[0]
        if len(part.splitlines()) > VERSION_LINES:
            yield f"{name}: more than {VERSION_LINES} lines of {version}"


def documents(root):
    for file in sorted(root.rglob("*.md")):
        name = file.relative_to(root)
        if name.parts[0] not in NOT_OURS:
            yield name.as_posix(), file.read_text()


def read_examples(root, pattern):
    return {
        file.relative_to(root).as_posix(): LICENSE.sub("", file.read_text())
        for file in sorted((root / "examples").glob(pattern))
    }


def problems(root):
    examples = [(names, read_examples(root, files)) for names, files in EXCERPTS]
    found = []
    for name, text in documents(root):
        if name == "README.md" or name.startswith("docs/"):
            found += block_problems(name, text, examples)
        found += link_problems(root, name, text)
        if name.startswith("docs/design/") and not name.endswith("/README.md"):
            found += decision_problems(name, text)
        if name == "CHANGELOG.md":
            found += changelog_problems(name, text)
        if name == "bench/README.md" and len(text.encode()) > BENCH_BYTES:
            found.append(f"{name}: more than {BENCH_BYTES} bytes")
    readme = (root / "README.md").read_text()
    if not blocks(readme, CPP):
        found.append("README.md has no C++ block")
    if len(readme.splitlines()) > README_LINES:
        found.append(f"README.md has more than {README_LINES} lines")
    return found


if __name__ == "__main__":
    sys.exit(check_sources.main(problems))

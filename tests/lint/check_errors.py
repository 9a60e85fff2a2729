#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every message in docs/errors.md is one of the sources'.

In the page … and words in capitals stand for names and numbers. A message may
be put together in several places ("NAME must be RANGE, got VALUE"), so each part
between these has to occur in a literal of some source; literals in a row count as one.

usage: check_errors.py [ROOT]
"""

import re
import sys
from pathlib import Path

FOLDERS = ("src", "include")
LITERAL = re.compile(r'"((?:\\.|[^"\\\n])*)"')
COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
CODE_OF_ERROR = re.compile(r"k[A-Z]\w+")
# What stands for something else: … or {…}, NAME, and what require() puts in.
PLACEHOLDER = re.compile(r"\{?…\}?|\b[A-Z]{4,}\b(?!_)| must be |, got ")


def literals_of(text):
    """What is between quotes, in order; neighbours in a row are one."""
    text = COMMENT.sub(lambda match: match.group(1) or " ", text)
    text = re.sub(r'"\s*\n\s*"', "", text)
    found = (match.group(1) for match in LITERAL.finditer(text))
    return "\n".join(found).replace('\\"', '"').replace("{{", "{")


def parts_of(message):
    """The words between a message's placeholders."""
    parts = (part.strip(" ;:,()") for part in PLACEHOLDER.split(message))
    return [part for part in parts if len(re.sub(r"\W", "", part)) > 1]


def messages_of(page):
    """All (line, message) of the first columns of the tables of messages."""
    is_table = False
    for number, line in enumerate(page.split("\n"), 1):
        if line.startswith("| message |"):
            is_table = True
        elif not line.startswith("|"):
            is_table = False
        elif is_table and not line.startswith("|---"):
            column = line.split(" | ")[0]
            for message in CODE.findall(column):
                if not CODE_OF_ERROR.fullmatch(message):
                    yield number, message


def problems(page, sources):
    """All (line, problem) of the page."""
    count = 0
    for number, message in messages_of(page):
        count += 1
        parts = parts_of(message)
        if not parts:  # placeholders alone
            parts = [re.sub(r"…|\b[A-Z]{4,}\b", "{}", message)]
            if " must be " not in message:
                yield number, f"`{message}` says nothing that could be looked for"
        for part in parts:
            if part not in sources:
                yield number, f"no source says `{part}`, of `{message}`"
    if count == 0:
        yield 1, "there are no messages here"


def main():
    default = Path(__file__).resolve().parents[2]
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    page = root / "docs" / "errors.md"
    sources = "\n".join(
        literals_of(file.read_text(encoding="utf-8"))
        for folder in FOLDERS
        for file in sorted((root / folder).rglob("*"))
        if file.suffix in (".h", ".cpp")
    )
    found = list(problems(page.read_text(encoding="utf-8"), sources))
    for line, problem in found:
        print(f"docs/errors.md:{line}: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

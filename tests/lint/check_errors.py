#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every message in docs/errors.md is one of the sources'.

In the page … and words in capitals stand for names and numbers. A message may
be put together in several places ("NAME must be RANGE, got VALUE"), so each part
between these has to occur in a literal of some source; literals in a row count as one.

usage: check_errors.py [ROOT]
"""

import ast
import re
import sys

import check_sources

FOLDERS = (
    "apps",
    "examples/train_gpt",
    "include",
    "python/bindings",
    "python/thinwire",
    "src",
)
LITERAL = re.compile(r'"((?:\\.|[^"\\\n])*)"')
COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
# What stands for something else: … or {…}, NAME, and what require() puts in.
PLACEHOLDER = re.compile(r"\{?…\}?|\b[A-Z]{4,}\b(?!_)| must be |, got ")


def literals_of_cpp(text):
    """What is between quotes, in order; neighbours in a row are one."""
    text = COMMENT.sub(lambda match: match.group(1) or " ", text)
    text = re.sub(r'"\s*\n\s*"', "", text)
    found = (match.group(1) for match in LITERAL.finditer(text))
    return "\n".join(found).replace('\\"', '"').replace("{{", "{")


def text_of(node):
    """The string that an expression of Python makes, with … for what it puts in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return "…"


def literals_of_python(text):
    """All strings but those that stand alone, which are documentation."""
    nodes = list(ast.walk(ast.parse(text)))
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    kinds = (ast.Constant, ast.JoinedStr)
    found = [n for n in nodes if isinstance(n, kinds) and id(n) not in alone]
    return "\n".join(text_of(node) for node in found)


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
                yield number, message


def problems_of(page, sources):
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


def problems(root):
    page = (root / "docs" / "errors.md").read_text(encoding="utf-8")
    literals = []
    for file in sorted(f for folder in FOLDERS for f in (root / folder).rglob("*.*")):
        if file.suffix in (".h", ".cpp"):
            literals.append(literals_of_cpp(file.read_text(encoding="utf-8")))
        elif file.suffix == ".py":
            literals.append(literals_of_python(file.read_text(encoding="utf-8")))
    for line, problem in problems_of(page, "\n".join(literals)):
        yield f"docs/errors.md:{line}: {problem}"


if __name__ == "__main__":
    sys.exit(check_sources.main(problems))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the classes of the library to a number of public functions.

usage: check_classes.py [ROOT]

Counts the public functions that each class of include/ and src/ declares,
overloads included, but no constructors, destructors and operators. Prints one
line per class that has too many, "file:line: what is wrong", and exits with 1 if
there was one.
"""

import re
import sys

import check_sources

MOST = 20
# Classes that may have more.
MORE = {
    "Communicator": 30,
    "Engine": 30,
    # They had so many when this check began. Lower these numbers, never raise them.
    "CompressedMomentum": 47,
}
HEAD = re.compile(
    r"(?<!enum )\b(class|struct)\s+((?:\w+::)*\w+)\s*(?:final\s*)?(?::[^:;{}()][^;{}()]*)?\{"
)
ACCESS = re.compile(r"(public|private|protected)\s*:(?!:)")
NO_FUNCTION = re.compile(
    r"(using|friend|typedef|static_assert|enum|class|struct|union)\b"
)


def end_of_block(code, start):
    """Index of the brace that closes the one at `start`."""
    depth = 0
    for match in re.compile("[{}]").finditer(code, start):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.start()
    return len(code)


def members_of(body):
    """Declarations of a class, with the blocks in them emptied, and its access
    specifiers."""
    member, i = "", 0
    while i < len(body):
        access = ACCESS.match(body, i)
        if access and not member.strip():
            yield access.group(1)
            i = access.end()
        elif body[i] == "{":
            i = end_of_block(body, i) + 1
            member += "{}"
            # Without one of these the block was a function's.
            if "(" in member and not body[i:].lstrip().startswith((";", ",", "(")):
                yield member
                member = ""
        elif body[i] == ";":
            yield member
            member, i = "", i + 1
        else:
            member, i = member + body[i], i + 1


def name_of_function(member, class_name):
    """Name of the function that a member declares; None if it is no function, a
    constructor, a destructor or an operator."""
    text = re.sub(r"\[\[.*?\]\]", "", member, flags=re.DOTALL).replace("->", "")
    before = None
    while before != text:  # template arguments may have parentheses
        before, text = text, re.sub(r"<[^<>]*>", "", text)
    text = re.sub(r"^\s*template\s*", "", text).strip()
    if NO_FUNCTION.match(text) or re.search(r"\boperator\b", text):
        return None
    match = re.search(r"(~?\w+)\s*\(", re.split("[={]", text, maxsplit=1)[0])
    if match is None or match.group(1).lstrip("~") == class_name:
        return None
    return match.group(1)


def classes_of(code):
    """(name, line, public functions) of each class in a file."""
    for match in HEAD.finditer(code):
        kind, name = match.groups()
        body = code[match.end() : end_of_block(code, match.end() - 1)]
        is_public, functions = kind == "struct", []
        for member in members_of(body):
            if member in ("public", "private", "protected"):
                is_public = member == "public"
            elif is_public:
                function = name_of_function(member, name.split("::")[-1])
                if function is not None:
                    functions.append(function)
        yield name, code.count("\n", 0, match.start()) + 1, functions


def problems(root):
    """All problems under `root`, and how many classes were read."""
    found, count = [], 0
    for top in ("include", "src"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in (".h", ".cpp"):
                continue
            code = check_sources.code_of(file.read_text(encoding="utf-8"))
            for name, line, functions in classes_of(code):
                count += 1
                most = MORE.get(name, MOST)
                if len(functions) > most:
                    found.append(
                        f"{file.relative_to(root).as_posix()}:{line}: {name} has "
                        f"{len(functions)} public functions; {most} are allowed"
                    )
    return found, count


if __name__ == "__main__":
    sys.exit(check_sources.main(problems, "classes"))

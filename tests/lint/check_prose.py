#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds documents, comments, docstrings and names of tests to plain English.

Outside code, generated text and the targets of links, a sentence has at most 25
words and one parenthesis and does not open like a fragment, a list item is complete
in itself, and no term stands that has a plainer one. Tables are held to the terms
only, and so are headings. Comments, docstrings and names of tests also name their
noun: HEADLESS lists the phrases that do not.

A comment is read as one list item. In C++ its lines that are indented further are
formulas, and string literals are not read. In a docstring each argument is a list
item, and lines that are indented by four are code. The name of a test is read as a
sentence.

usage: check_prose.py [ROOT]
"""

import ast
import inspect
import io
import re
import sys
import tokenize

import check_sources

FILES = (
    *(
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "bench/README.md",
        "docs/README.md",
        "docs/algorithms.md",
        "docs/env.md",
    ),
    *("docs/errors.md", "docs/guide/*.md", "examples/README.md", "python/README.md"),
    *("docs/algorithms/*.md", "docs/design/*.md", "docs/scale.md"),
    *("apps/**/*.h", "apps/**/*.cpp", "bench/**/*.cpp", "bench/**/*.py"),
    *("examples/**/*.h", "examples/**/*.cpp", "examples/**/*.py", "fuzz/*.cpp"),
    *("include/thinwire/**/*.h", "src/**/*.h", "src/**/*.cpp"),
    *("python/bindings/**/*.h", "python/bindings/**/*.cpp"),
    *("python/thinwire/**/*.py", "scripts/*.py", "tests/support/*.h"),
)
# Files of which the names of tests are read, and nothing else.
TESTS = ("tests/**/*_test.cpp", "tests/**/*_test.py", "python/tests/**/test_*.py")
# File and text, as it stands there, that may break a rule; "": the whole file.
EXCEPTIONS = (
    # Programs print it into tables.
    *(("bench/README.md", "by host"), ("docs/scale.md", "by host")),
    # README shows them.
    ("examples/python/ten_lines.py", "has data of its own"),
    ("examples/torch_engine.cpp", "has data of its own"),
)

LONGEST = 25
OPENERS = r"(Of|As|What|Where|Those|Else|Likewise)\b"
TERMS = (
    (r"but for", "except"),
    (r"under way", "in flight, pending"),
    (r"(go|goes|going|gone|went) on", "continue, resume"),
    (r"(take|takes|taking|taken|took) up", "restore"),
    (r"by host", "hierarchical; ranks on one host reduce locally first"),
    (r"few bits", "low-bit (1 to 8 bits), or the number"),
    (r"owe[sd]?|debts?|pays?|paid", "residual; restored residual"),
    (r"(wake|come)s?( to life| up)|late elements?", "inactive element, is activated"),
    (r"late gradients?", "deferred gradients"),
    (r"heavy elements?", "outlier"),
    (r"home", "relocation"),
    (r"edits", "external writes"),
    (r"(the|their|of) marks", "checksums"),
    (r"the (wing|room)", "the module"),
    (r"likewise|of use|at the most|in so far", "leave it out, or say it in full"),
    (r"withholds?|withheld", "reject, skip"),
    (r"(is|are|was|were|be|been) (told|handed)(?! apart)", "say who passes it"),
    (r"(is|are) to be", "must be"),
)
VERBS = (
    "adds|copies|follows|gets|keeps|notes|passes|reads|returns|runs|sends|sets|takes"
)
HEADLESS = (
    (rf"({VERBS})( on)? what", "name the values"),
    (
        r"(except|for|from|in|of|than|to|with) what (had|has|have|is|it|they|was)",
        "name it",
    ),
    (r"what is (left|there)|(one )?that (is|are) there", "the rest, the existing ones"),
    (r"(equally|so) many", "the same number of, that many"),
    (r"as many(?= (for|in|of) |$|[,.;:)])", "the same number of"),
    (
        r"of (its|their) own(?=$|[,.;:)]| (and|beside|for|in|so|that|under) )",
        "its own X, a separate X",
    ),
)

GENERATED = re.compile(r"<!-- (\w+): \w+ -->.*?<!-- \1: end -->", re.DOTALL)
FENCE = re.compile(r"^ *```.*?^ *```[^\n]*$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[([^]]*)\]\([^()]*\)")
CODE = re.compile(r"`[^`]*`")
INCOMPLETE = re.compile(
    r"^(…|\.\.\.|The same(,| (again|as|but|for|in|of|on|where|with)\b))|(…|\.\.\.|[,;])$"
)
ITEM = re.compile(r" *([*-]|\d+\.) +")
END = re.compile(r"(?<=[.!?])[*\")]*\s+")
LITERAL = r"""(?>"(?:\\.|[^"\\])*"|.)"""
COMMENT = re.compile(rf"^({LITERAL}*?)(?:(?<!\S)(//[/<]*)|$)(.*)$")
CALL = re.compile(r"(?<=\w)\([^()]*\)")
CALLED = re.compile(r"[\w.]+\(\)")
ARGUMENT = re.compile(r"^(?=\w+(, \w+)*: )")
DIRECTIVE = re.compile(r"#(!| ?(SPDX|fmt|noqa|pragma|ruff|type)\b)")
TEST = re.compile(
    r"^(?:TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)|\s*def (test)_(\w+))", re.MULTILINE
)
WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_")


def blank(match):
    """Keeps the lines of what is left out, so that others keep their numbers."""
    return "\n" * match.group().count("\n")


def blocks(text):
    """Yields line, kind ("table", "heading", "item", "prose") and text of each block."""
    begin, kind, lines = 0, "", []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        item = ITEM.match(line)
        alone = "table" if line.startswith("|") else "heading" * line.startswith("#")
        if lines and (item or alone or not line.strip()):
            yield begin, kind, " ".join(lines)
            lines = []
        if alone:
            yield number, alone, line
        elif line.strip():
            if not lines:
                begin, kind = number, "item" if item else "prose"
            lines.append(line[item.end() :] if item else line.strip())


def comments(text):
    """Yields for each line of C++ its part of a document of all comments."""
    above = ""
    for line in text.split("\n"):
        code, mark, words = COMMENT.search(line).groups()
        begins = code.strip() or mark != above
        left_out = not words.strip() or words.startswith(("  ", " SPDX-"))
        yield "" if left_out else "* " * bool(begins) + CALL.sub("", words.strip())
        above = mark


def python_comments(text, lines):
    """Adds the comments of a module to the lines of a document."""
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or DIRECTIVE.match(token.string):
            continue
        number, words = token.start[0] - 1, token.string.lstrip("# ")
        alone = not token.line[: token.start[1]].strip()
        begins = not alone or last != number - 1
        lines[number] = "* " * begins + CALLED.sub("`code`", words)
        last = number if alone else -1


def docstrings(text):
    """Returns for each line of a module its part of a document of all prose."""
    lines = [""] * len(text.split("\n"))
    python_comments(text, lines)
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(words))):
                clean = inspect.cleandoc(words).split("\n")
                for number, line in enumerate(clean, node.lineno - 1):
                    plain = ARGUMENT.sub("* ", CALLED.sub("`code`", line))
                    lines[number] = "" if line.startswith("    ") else plain
    return lines


def test_names(text):
    """Returns for each line of a source the name of the test that begins there.

    A suite may be the noun of a name: Buffers.OfNothingAreEmpty.
    """
    lines = [""] * len(text.split("\n"))
    for found in TEST.finditer(text):
        suite, name = (group for group in found.groups() if group)
        words = f"{suite}_{name}" if name.startswith(("Of", "As")) else name
        lines[text.count("\n", 0, found.start())] = "* " + WORD.sub(" ", words)
    return lines


def block_problems(kind, text, terms):
    for term, better in terms:
        for found in re.finditer(rf"\b({term})(?!\w)", text, re.IGNORECASE):
            yield f"'{found.group()}': {better}"
    if kind in ("table", "heading"):
        return
    if kind == "item" and INCOMPLETE.search(text):
        yield "a list item is complete in itself"
    for sentence in END.split(text):
        words = re.findall(r"\w[^\s]*", sentence)
        where = " ".join(words[:6])
        if len(words) > LONGEST:
            yield f"{len(words)} words in a sentence, at most {LONGEST}: {where}"
        if sentence.count("(") > 1 and " = " not in sentence:
            yield f"more than one parenthesis: {where}"
        if re.match(OPENERS, " ".join(words)):
            yield f"begins like a fragment: {where}"


def problems(root):
    names = {file for pattern in FILES for file in root.glob(pattern)}
    tests = {file for pattern in TESTS for file in root.glob(pattern)} - names
    for file in sorted(names | tests):
        name = file.relative_to(root).as_posix()
        text = file.read_text(encoding="utf-8")
        for exempt in (words for path, words in EXCEPTIONS if path == name):
            text = text.replace(exempt or text, "")
        terms = TERMS if file.suffix == ".md" else TERMS + HEADLESS
        if file in tests:
            text = "\n".join(test_names(text))
        elif file.suffix in (".h", ".cpp"):
            text = "\n".join(comments(text))
        elif file.suffix == ".py":
            text = "\n".join(docstrings(text))
        text = FENCE.sub(blank, GENERATED.sub(blank, text))
        for line, kind, block in blocks(text):
            plain = CODE.sub("code", LINK.sub(r"\1", block)).replace("**", "")
            for problem in block_problems(kind, plain, terms):
                yield f"{name}:{line}: {problem}"


if __name__ == "__main__":
    sys.exit(check_sources.main(problems))

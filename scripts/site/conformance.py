# SPDX-License-Identifier: Apache-2.0
"""Makes the page docs/conformance of docs/conformance.json."""

import json
from pathlib import Path

LIST = Path("docs/conformance.json")
PAGE = LIST.with_suffix(".md")
STATES = {
    "done": "yes",
    "partly": "partly",
    "missing": "no",
    "declined": "declined",
}


def lines_of(table):
    return ["| " + " | ".join(row) + " |" for row in table]


def tests_cell(item):
    names = ", ".join(f"`{name}`" for name in item["tests"])
    return "; ".join(part for part in (names, item.get("note", "")) if part)


def described_rows(items):
    yield from (("item", "holds", "place", "test"), ("---",) * 4)
    for item in items:
        yield (item["item"], STATES[item["state"]], item["place"], tests_cell(item))


def practice_rows(items):
    yield from (("item", "what holds", "test"), ("---",) * 3)
    for item in items:
        yield (item["id"], item["item"], tests_cell(item))


def page(text):
    """Returns the page, in Markdown, of the list's text."""
    content = json.loads(text)
    lines = ["# Conformance", "", *content["introduction"], ""]
    lines += ["## The described systems", "", *content["of_descriptions"], ""]
    counts = [("description", "items", *STATES.values()), ("---",) * 6]
    for part in content["descriptions"]:
        states = [item["state"] for item in part["items"]]
        counts.append(
            (part["title"], str(len(states)), *(str(states.count(s)) for s in STATES))
        )
    lines += [*lines_of(counts), ""]
    for part in content["descriptions"]:
        lines += [f"### {part['title']}", "", *lines_of(described_rows(part["items"]))]
        lines.append("")
    lines += ["## What practice asks for", "", *content["of_practice"], ""]
    for part in content["practice"]:
        lines += [f"### {part['title']}", "", *lines_of(practice_rows(part["items"]))]
        lines += ["", *part.get("after", [])]
        lines += [""] if "after" in part else []
    return "\n".join(lines).rstrip("\n") + "\n"

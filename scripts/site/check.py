# SPDX-License-Identifier: Apache-2.0
"""Checks the pages of a built site: links lead to a page and an anchor that are there,
and each page has a link to the index.

usage: check.py FOLDER
"""

import re
import sys
from pathlib import Path
from urllib.parse import unquote

LINK = re.compile(r'<[^>]*\s(?:href|src)="([^"#?]*)(?:\?[^"#]*)?(?:#([^"]*))?"')
ANCHOR = re.compile(r'\sid="([^"]+)"')


def problems(folder):
    texts = {file: file.read_text() for file in sorted(folder.rglob("*.html"))}
    anchors = {file: set(ANCHOR.findall(text)) for file, text in texts.items()}
    index = folder / "index.html"
    for file, text in texts.items():
        name, back = file.relative_to(folder), file == index
        for path, anchor in LINK.findall(text):
            if re.match(r"[a-z]+:", path):
                continue
            target = (file.parent / unquote(path)).resolve() if path else file
            back = back or target == index
            if not target.is_file():
                yield f"{name}: no such file: {path}"
            elif (
                anchor and target in anchors and unquote(anchor) not in anchors[target]
            ):
                yield f"{name}: no such anchor: {path}#{anchor}"
        if not back:
            yield f"{name}: no link to the index"
    if index not in texts:
        yield "index.html is missing"


def main():
    found = sorted(set(problems(Path(sys.argv[1]).resolve())))
    print("\n".join(found[:40]), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Lays out the repository's pages for Sphinx: README.md becomes the index, links to
sources lead to pages of their own, and docs/conformance.json becomes a page.

usage: stage.py ROOT FOLDER
"""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import conformance
from api import Package, header
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.token import Token
from pygments.util import ClassNotFound

BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\(([^()\s]+)\)")
PICTURES = (".svg", ".png")

# Page, caption, pages below it; a name that ends with / is all other pages there.
SECTIONS = (
    ("Guides", ("docs/guide/README",)),
    ("Algorithms", ("docs/algorithms",)),
    ("Reference", ("api/cpp", "api/c", "api/python", "docs/env", "docs/errors")),
    ("Measured", ("bench/README", "docs/conformance")),
    (
        "Project",
        (
            "docs/README",
            "docs/design/README",
            "examples/README",
            "python/README",
            "packaging/README",
            "tests/golden/README",
            "CONTRIBUTING",
            "SECURITY",
            "CHANGELOG",
        ),
    ),
)
BELOW = {
    "docs/guide/README": "docs/guide",
    "docs/algorithms": "docs/algorithms",
    "docs/design/README": "docs/design",
}

PYTHON_MODULES = (
    "thinwire",
    "thinwire.optim",
    "thinwire.comm",
    "thinwire.checkpoint",
    "thinwire.compat",
    "thinwire.errors",
    "thinwire.integrations.transformers",
    "thinwire.integrations.accelerate",
    "thinwire.integrations.lightning",
)

SOURCE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{path} - Thinwire</title>
<link rel="stylesheet" href="{up}source.css">
</head>
<body>
<nav><a href="{up}index.html">Thinwire</a> / {crumbs}</nav>
<main>{body}</main>
</body>
</html>
"""
STYLE = """
body { margin: 0 auto; padding: 1rem; max-width: 60rem; font-family: system-ui, sans-serif; }
nav { margin-bottom: 1rem; overflow-wrap: anywhere; }
pre { overflow-x: auto; font-size: 0.85rem; line-height: 1.4; }
li { font-family: monospace; line-height: 1.6; }
@media (prefers-color-scheme: dark) {
  body { background: #131416; color: #cfd0d0; }
  a { color: #8ab4f8; }
  %s
}
"""


class Formatter(HtmlFormatter):
    """Marks comments, strings and keywords only, which keeps pages small."""

    def format_unencoded(self, tokensource, outfile):
        kept = (Token.Comment, Token.Literal.String, Token.Keyword)

        def reduced():
            for kind, value in tokensource:
                found = next((k for k in kept if kind in k), Token.Text)
                yield found, value

        super().format_unencoded(reduced(), outfile)


class Sources:
    """The pages of source files and folders that documents link to."""

    def __init__(self, root, folder):
        self.root, self.folder = root, folder
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=root, stdout=subprocess.PIPE, check=True
        ).stdout.decode()
        self.tracked = {Path(name) for name in listed.split("\0") if name}
        self.wanted = set()

    def address(self, path):
        """Where the page of `path` is, below the site; None if nothing is there."""
        full = self.root / path
        if full.is_dir():
            self.wanted.add(path)
            self.wanted |= {file for file in self.tracked if file.parent == path}
            return f"source/{path}/index.html"
        if full.is_file():
            self.wanted.add(path)
            return f"source/{path}.html"
        return None

    def body(self, path):
        full = self.root / path
        if full.is_dir():
            files = sorted(file for file in self.tracked if file.parent == path)
            items = (
                f'<li><a href="{file.name}.html">{html.escape(file.name)}</a></li>'
                for file in files
            )
            return "<ul>" + "\n".join(items) + "</ul>"
        text = full.read_text()
        try:
            lexer = get_lexer_for_filename(path.name, text)
        except ClassNotFound:
            lexer = TextLexer()
        return highlight(text, lexer, Formatter(nowrap=False))

    def write(self):
        for path in self.wanted:
            is_folder = (self.root / path).is_dir()
            name = f"source/{path}/index.html" if is_folder else f"source/{path}.html"
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            up = "../" * name.count("/")
            crumbs = html.escape(str(path.parent)) + "/" if path.parent.parts else ""
            if path.parent in self.wanted:
                above = "../" if is_folder else ""
                crumbs = f'<a href="{above}index.html">{crumbs}</a>'
            crumbs += html.escape(path.name)
            text = SOURCE.format(
                path=html.escape(str(path)), up=up, crumbs=crumbs, body=self.body(path)
            )
            file.write_text(text)
        light = Formatter().get_style_defs("pre")
        dark = Formatter(style="github-dark").get_style_defs("pre")
        (self.folder / "source.css").write_text(light + STYLE % dark)


def page_name(path):
    return "index.md" if str(path) == "README.md" else str(path)


def rewrite(root, name, text, sources):
    """The text of a page, with its links as the site has them."""
    page = Path(page_name(name))

    def replaced(match):
        picture, words, link = match.groups()
        if "://" in link or link.startswith(("#", "mailto:")):
            return match[0]
        path, _, anchor = link.partition("#")
        target = Path(os.path.relpath((root / name).parent / path, root))
        if picture:
            return match[0]
        if target == conformance.LIST and name != conformance.PAGE:
            target = conformance.PAGE
        if target.suffix == ".md":
            to = os.path.relpath(page_name(target), page.parent)
            return f"[{words}]({to}{'#' + anchor if anchor else ''})"
        if (root / target / "README.md").exists():
            to = os.path.relpath(page_name(target / "README.md"), page.parent)
            return f"[{words}]({to})"
        address = sources.address(target)
        if address is None:
            raise SystemExit(f"{name}: no such file: {link}")
        return f'<a href="{os.path.relpath(address, page.parent)}">{words}</a>'

    parts, end = [], 0
    for block in BLOCK.finditer(text):
        parts += [LINK.sub(replaced, text[end : block.start()]), block[0]]
        end = block.end()
    return "".join(parts) + LINK.sub(replaced, text[end:])


def contents(pages, caption=None):
    option = f":caption: {caption}\n" if caption else ""
    return f"\n\n```{{toctree}}\n:hidden:\n{option}\n" + "\n".join(pages) + "\n```\n"


def reference(root, folder):
    """One page per module of the C++ headers and of the package, one of the C header."""
    api = folder / "api"
    include = root / "include" / "thinwire"
    modules = sorted(path.name for path in include.iterdir() if path.is_dir())
    (api / "cpp").mkdir(parents=True)
    for module in modules:
        text = [f"# {module}\n"]
        for file in sorted((include / module).glob("*.h")):
            text.append(f"## {module}/{file.name}\n")
            text.append(f"```cpp\n#include <thinwire/{module}/{file.name}>\n```\n")
            text += header(file.read_text(), "cpp", 3)
        (api / "cpp" / f"{module}.md").write_text("\n".join(text))
    package = Package(root / "python" / "thinwire")
    (api / "python").mkdir()
    for module in PYTHON_MODULES:
        (api / "python" / f"{module}.md").write_text("\n".join(package.page(module)))
    begin = "# C\n\n```c\n#include <thinwire/thinwire.h>\n```\n\n"
    declared = header((include / "thinwire.h").read_text(), "c", 2)
    (api / "c.md").write_text(begin + "\n".join(declared))
    words = "# C++\n\nThe public headers by module, in the namespace `thinwire`."
    listing(api / "cpp.md", words, [f"cpp/{module}" for module in modules])
    words = "# Python\n\nThe public names of the package, by module."
    listing(api / "python.md", words, [f"python/{module}" for module in PYTHON_MODULES])


def listing(file, words, pages):
    lines = [f"* [{page.partition('/')[2]}]({page}.md)" for page in pages]
    file.write_text(words + "\n\n" + "\n".join(lines) + contents(pages))


def main():
    root, folder = (Path(argument).resolve() for argument in sys.argv[1:])
    extra = folder / "extra"
    sources = Sources(root, extra)
    pages = sorted(path for path in sources.tracked if path.suffix == ".md")
    texts = {path: (root / path).read_text() for path in pages}
    texts[conformance.PAGE] = conformance.page((root / conformance.LIST).read_text())
    for path, text in texts.items():
        text = rewrite(root, path, text, sources)
        name = page_name(path).removesuffix(".md")
        if path == Path("README.md"):
            text += "".join(contents(below, caption) for caption, below in SECTIONS)
        if name in BELOW:
            here = Path(BELOW[name])
            others = (p for p in pages if p.parent == here and p != path)
            base = Path(name).parent
            text += contents([os.path.relpath(p.with_suffix(""), base) for p in others])
        file = folder / page_name(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for path in sources.tracked:
        if path.suffix in PICTURES:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes((root / path).read_bytes())
    reference(root, folder)
    sources.write()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the Python package to one direction of imports.

usage: check_imports.py [ROOT]

Folders of python/thinwire import only those to their left in FOLDERS, and no modules
import each other in a circle. Imports inside functions count, and so do those that only
type checkers follow. Prints one line per violation and exits with 1 if there was one.
"""

import ast
import sys
from graphlib import CycleError, TopologicalSorter

import check_sources

PACKAGE = "thinwire"
FOLDERS = ("comm", "optim", "hooks", "engine", "integrations")


def imported(module, is_package, node):
    """Dotted names that one import statement may mean."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module.split(".") if node.module else []
    if node.level:
        above = module.split(".")
        base = above[: len(above) - node.level + is_package] + base
    return [".".join((*base, alias.name)) for alias in node.names] + [".".join(base)]


def imports_of(root):
    """The modules of the package that each of them imports."""
    files = {}
    for file in sorted((root / "python" / PACKAGE).rglob("*.py")):
        parts = file.relative_to(root / "python").with_suffix("").parts
        is_package = parts[-1] == "__init__"
        files[".".join(parts[:-1] if is_package else parts)] = file
    graph = {}
    for module, file in files.items():
        is_package = file.name == "__init__.py"
        names = {
            name
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in imported(module, is_package, node)
        }
        # `from . import x` names the package above, which does not import x's users.
        graph[module] = {
            n for n in names if n in files and not f"{module}.".startswith(f"{n}.")
        }
    return graph


def folder_of(module):
    """The folder's place in FOLDERS; None for modules beside them."""
    parts = module.split(".")
    if len(parts) > 1 and parts[1] in FOLDERS:
        return FOLDERS.index(parts[1])
    return None


def problems(root):
    """All problems under `root`, and how many modules were read."""
    graph, found = imports_of(root), []
    for module, others in graph.items():
        for other in sorted(others):
            here, there = folder_of(module), folder_of(other)
            if here is not None and there is not None and there > here:
                found.append(f"{module} may not import {other}")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found.append("import circle: " + " <- ".join(error.args[1]))
    return found, len(graph)


if __name__ == "__main__":
    sys.exit(check_sources.main(problems, "modules"))

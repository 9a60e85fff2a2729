# SPDX-License-Identifier: Apache-2.0
"""The types that users see: mypy agrees, and _core.pyi names what the module has."""

import ast
import subprocess
import sys
from pathlib import Path

from nanobind.stubgen import StubGen
from thinwire import _core

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "thinwire"
# Names that only types need: they are no objects of the module.
OF_TYPES = {"Accept", "Array", "Options", "Schedule", "State", "Transport"}

Names = dict[str, set[str]]


def test_mypy_strict_finds_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", "build/mypy-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def names(stub: str) -> Names:
    """Public names in a stub; of classes those of their members."""
    nodes = dict(named(ast.parse(stub).body))
    return {
        name: members(node, nodes) if isinstance(node, ast.ClassDef) else set()
        for name, node in nodes.items()
        if not name.startswith("_") and name not in OF_TYPES
    }


def members(node: ast.ClassDef, nodes: dict[str, ast.stmt]) -> set[str]:
    """Public members, with those of bases that are there for the stub only."""
    found = {name for name, _ in named(node.body) if not name.startswith("_")}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id.startswith("_"):
            inner = nodes[base.id]
            assert isinstance(inner, ast.ClassDef)
            found |= members(inner, nodes)
    return found


def named(body: list[ast.stmt]) -> list[tuple[str, ast.stmt]]:
    """(name, node) of what a body defines."""
    found: list[tuple[str, ast.stmt]] = []
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.append((node.name, node))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append((node.target.id, node))
        elif isinstance(node, ast.Assign):
            found += [(t.id, node) for t in node.targets if isinstance(t, ast.Name)]
    return found


def test_the_stub_names_what_the_module_has() -> None:
    made = StubGen(_core)
    made.put(_core)
    of_module, of_file = names(made.get()), names((PACKAGE / "_core.pyi").read_text())
    assert of_file.keys() == of_module.keys()
    for name in of_module:
        assert of_file[name] == of_module[name], name

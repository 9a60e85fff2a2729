# SPDX-License-Identifier: Apache-2.0
"""Versions of the package with other text in one file, for tests that must notice it."""

from __future__ import annotations

import importlib.machinery
from pathlib import Path
from typing import Any

Mutants = dict[str, dict[str, str | tuple[str, str]]]
"""By file and name: the text that is removed, or that is there and that replaces it."""


def mutate(mutants: Mutants, name: str) -> None:
    """Changes a file for this process, before thinwire is imported; "" changes nothing."""
    if name == "":
        return
    ((file, change),) = ((f, of[name]) for f, of in mutants.items() if name in of)
    old, new = (change, "") if isinstance(change, str) else change
    kind = importlib.machinery.SourceFileLoader
    get_code = kind.get_code

    def mutated(self: Any, module: str) -> Any:
        path = self.get_filename(module)
        if not path.endswith(file):
            return get_code(self, module)
        text = Path(path).read_text()
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
        return compile(text.replace(old, new), path, "exec", dont_inherit=True)

    kind.get_code = mutated  # type: ignore[method-assign]

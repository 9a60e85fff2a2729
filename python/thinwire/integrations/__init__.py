# SPDX-License-Identifier: Apache-2.0
"""Thinwire's optimizers in the trainers of other packages. Each trainer has one module,
which imports the trainer and is therefore imported only when first named.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

__all__ = ["accelerate", "lightning", "transformers"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

# SPDX-License-Identifier: Apache-2.0
"""The keyword `telemetry` of optimizers without an engine: docs/guide/telemetry.md."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from .. import _core
from .._paths import path_of
from ..errors import InvalidArgument

Given: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
_KEYS = ("path", "every", "every_rank")


def telemetry_of(given: Given, rank: int) -> _core.Telemetry:
    """Opens the file. Local. Raises InvalidArgument or TypeError naming the key."""
    values = dict(given) if isinstance(given, Mapping) else {"path": given}
    for key in values:
        if key not in _KEYS:
            raise InvalidArgument(
                f"telemetry: must have the keys {', '.join(_KEYS)}, got '{key}'"
            )
    path = path_of("telemetry['path']", values.get("path"))
    every, every_rank = values.get("every", 1), values.get("every_rank", False)
    if type(every) is not int or every < 1:
        raise InvalidArgument(f"telemetry['every']: must be >= 1, got {every!r}")
    if not isinstance(every_rank, bool):
        raise TypeError(f"telemetry['every_rank']: must be bool, got {every_rank!r}")
    return _core.Telemetry(path, every, every_rank, rank)

# SPDX-License-Identifier: Apache-2.0
"""Configurations: DeepSpeed's ds_config.json, a dict of the same form, or a Config."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Collection, Mapping
from typing import Any

from . import _core
from ._log import logger
from .errors import Error, InvalidArgument

Config = _core.Config

_MOST_DEEP = 32  # levels of nesting that from_json() reads

Source = str | os.PathLike[str] | Mapping[str, Any] | _core.Config


def read_config(
    source: Source, *, without_schedule: bool = False
) -> tuple[_core.Config, list[_core.KeyNote]]:
    """Returns the configuration given by `source`, and notes on its keys. Local.

    Every key is supported, ignored or rejected. "auto" counts as absent, except for a
    scheduler's numbers of steps. `without_schedule` omits the schedule of learning
    rates, because the program uses its own schedule.

    Raises InvalidArgument naming the file and the key, and TypeError for another kind
    of source.
    """
    if isinstance(source, _core.Config):
        made = copy.copy(source)
        if without_schedule:
            made.schedule = _core.LearningRateSchedule()
        return made, []
    if isinstance(source, Mapping):
        name, tree = "", dict(source)
        text = _to_text(tree)
    elif isinstance(source, (str, os.PathLike)):
        name = os.fsdecode(source)
        text = _read(name)
        tree = _tree(text)
    else:
        raise TypeError(
            "config: must be a path, a dict or a thinwire.Config, got "
            f"{type(source).__name__}"
        )
    if without_schedule and _drop_schedule(tree):
        text = _to_text(tree)
    try:
        return _core.Config.from_json(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}" if name else str(error)) from None


def tree_of(source: Source) -> Mapping[str, Any]:
    """Returns the tree of a source that read_config() accepted. Local. Sections of
    other packages are included. A thinwire.Config has an empty tree.
    """
    if isinstance(source, _core.Config):
        return {}
    return source if isinstance(source, Mapping) else _tree(_read(os.fsdecode(source)))


def named_backend(source: Any) -> str | None:
    """Returns comm_backend_name, if the source is valid and contains that key. Local."""
    if isinstance(source, _core.Config):
        name = source.comm.backend.name
        return None if name == "unset" else name
    try:
        found = tree_of(source() if callable(source) else source)
        name = found["optimizer"]["params"]["comm_backend_name"]
    except (Error, TypeError, LookupError):  # read_config() reports it, on all ranks
        return None
    return name if isinstance(name, str) else None


def log_notes(notes: list[_core.KeyNote], followed: Collection[str] = ()) -> None:
    """Warns once about keys without effect, unless another object uses them. Logs a
    line for each such key, and for each absent key with a different default. Local.
    """
    told = [n for n in notes if not n.is_supported and n.path not in followed]
    for note in told:
        logger.info("configuration: %s", note)
    ignored = [note.path for note in told if note.is_ignored]
    if ignored:
        logger.warning(
            "configuration: these keys have no effect: %s (`thinwire config check` says "
            "why)",
            ", ".join(ignored),
        )


def _drop_schedule(tree: dict[str, Any]) -> bool:
    own = tree.get("thinwire")
    found = tree.pop("scheduler", None) is not None
    if isinstance(own, Mapping) and "schedule" in own:
        tree["thinwire"] = {k: v for k, v in own.items() if k != "schedule"}
        found = True
    return found


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as error:  # not UTF-8, or not the name of a file
        raise InvalidArgument(
            f"config: cannot read the file '{path}': {error}"
        ) from None


def _tree(text: str) -> dict[str, Any]:
    # from_json() refuses text that is not a JSON object, or that Python cannot read.
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _to_text(tree: Mapping[str, Any]) -> str:
    try:
        return json.dumps(tree, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        require_finite(tree, "config: ")
        raise InvalidArgument(f"config: its values must be JSON's: {error}") from None


def require_finite(value: Any, what: str, key: str = "", depth: int = 0) -> None:
    """Raises InvalidArgument for an infinity or NaN in `value`, named `what` and its key."""
    if depth > _MOST_DEEP:  # such as a container that contains itself
        raise InvalidArgument(f"values must be nested at most {_MOST_DEEP} deep")
    if isinstance(value, Mapping):
        for name, member in value.items():
            inner = f"{key}.{name}" if key else str(name)
            require_finite(member, what, inner, depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, member in enumerate(value):
            require_finite(member, what, f"{key}[{index}]", depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(f"{what}{key} must be finite, got {value}")

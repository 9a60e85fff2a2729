# SPDX-License-Identifier: Apache-2.0
"""The text in a checkpoint for entries of param_groups that are in no state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import CorruptCheckpoint
from ._native import FIXED_KEYS, KEYWORDS, MASK
from ._options import REFUSED, rate_of

# Keys of a group that checkpoints store elsewhere, or that are fixed at construction.
_NOT_SAVED = {"params", "param_names", "lr", MASK, *FIXED_KEYS, *REFUSED, *KEYWORDS}


def to_text(groups: list[dict[str, Any]]) -> str:
    """Returns the entries of param_groups that the optimizer's state lacks, as text."""
    return json.dumps(
        [
            {
                key: value.item() if isinstance(value, torch.Tensor) else value
                for key, value in group.items()
                if key not in _NOT_SAVED and _is_plain(value)
            }
            for group in groups
        ]
    )


def parse(text: Any, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the entries that from_text() would put into each of `groups`. Raises
    CorruptCheckpoint.
    """
    try:
        saved_groups = json.loads(text)
        for saved in saved_groups:
            for value in saved.values():
                if not _is_plain(value):
                    raise TypeError(f"{value!r:.60} is neither a number nor text")
            _require_possible(saved)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptCheckpoint(
            f"the saved param_groups cannot be used: {error}"
        ) from None
    if len(saved_groups) != len(groups):
        return [{} for _ in groups]
    for group, saved in zip(groups, saved_groups, strict=True):
        for key in _NOT_SAVED & saved.keys():  # the state or the script sets these
            del saved[key]
        for key, value in saved.items():
            if isinstance(group.get(key), torch.Tensor) and isinstance(value, str):
                raise CorruptCheckpoint(
                    f"the saved param_groups: '{key}' must be a number, got {value!r:.60}"
                )
    return list(saved_groups)


def _require_possible(saved: Mapping[str, Any]) -> None:
    for key in {"params", "param_names"} & saved.keys():
        raise ValueError(f"'{key}' must be absent, got {saved[key]!r:.60}")
    rate_of("'weight_decay'", saved.get("weight_decay", 0))


def numbers_of(groups: list[dict[str, Any]]) -> dict[str, float]:
    return {
        f"param_groups[{i}]['{key}']": float(group[key])
        for i, group in enumerate(groups)
        for key in ("lr", "weight_decay")
        if key in group
    }


def from_text(text: str, groups: list[dict[str, Any]]) -> None:
    """Puts the values of the text into the groups, if the number of groups matches."""
    for group, saved in zip(groups, parse(text, groups), strict=True):
        for key, value in saved.items():
            if isinstance(group.get(key), torch.Tensor):
                group[key].fill_(value)
            else:
                group[key] = value


def _is_plain(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, (bool, int, float, str))

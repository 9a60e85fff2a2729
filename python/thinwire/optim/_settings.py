# SPDX-License-Identifier: Apache-2.0
"""What param_groups say now, and what the optimizer was told last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import CorruptCheckpoint, FailedPrecondition
from ._native import FIXED_KEYS, MASK, Native, mask_of
from ._options import REFUSED, names_of_python, number_of

# Of a group: what checkpoints have elsewhere, or what is fixed at construction.
_NOT_SAVED = {"params", "param_names", "lr", MASK, *FIXED_KEYS, *REFUSED}


class Settings:
    """Follows learning rates, weight decay and masks; finds out where something else
    changed."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self._fixed = [
            {key: group[key] for key in FIXED_KEYS if key in group} for group in groups
        ]
        self._rates = [float(group["lr"]) for group in groups]
        self._decays = [float(group["weight_decay"]) for group in groups]
        self._masks = [_versions(group) for group in groups]

    def fixed(self, index: int) -> Mapping[str, Any]:
        """What a group was made with and cannot change."""
        return self._fixed[index]

    def told(self, rates: list[float]) -> None:
        """The optimizer has these learning rates, from a state."""
        self._rates = rates

    def apply(self, groups: list[dict[str, Any]], native: Native) -> None:
        """Tells the optimizer what has changed.

        Raises FailedPrecondition naming a key that cannot change.
        """
        for index, group in enumerate(groups):
            self.require_fixed(index, group)
        with names_of_python():
            self._tell(groups, native.optimizer)
            for index, group in enumerate(groups):
                if self.has_other_mask(index, group):
                    mask = mask_of(index, group, native.places)
                    native.optimizer.set_exp_avg_mask(index, mask)
                    self._masks[index] = _versions(group)

    def has_other_mask(self, index: int, group: Mapping[str, Any]) -> bool:
        """Whether another tensor is there, or one was written to."""
        before, now = self._masks[index], _versions(group)
        return len(before) != len(now) or any(
            a is not b or of != at for (a, of), (b, at) in zip(before, now, strict=True)
        )

    def _tell(self, groups: list[dict[str, Any]], optimizer: Any) -> None:
        for index, group in enumerate(groups):
            rate, decay = _numbers(index, group)
            if rate != self._rates[index]:
                optimizer.set_learning_rate(index, rate)
                self._rates[index] = rate
            if decay != self._decays[index]:
                optimizer.set_weight_decay(index, decay)
                self._decays[index] = decay

    def require_fixed(self, index: int, group: Mapping[str, Any]) -> None:
        """Raises FailedPrecondition unless `group` has the values of construction."""
        for key, value in self._fixed[index].items():
            if key not in group or not same(group[key], value):
                raise FailedPrecondition(
                    f"param_groups[{index}]['{key}'] was {_short(value)} when the "
                    f"optimizer was made and is {_short(group.get(key))} now, which "
                    f"cannot be followed{_CURES.get(key, '')}"
                )


_CURES = {
    "betas": ": OneCycleLR and CyclicLR cycle it unless they are made with "
    "cycle_momentum=False"
}


def _versions(group: Mapping[str, Any]) -> list[tuple[Any, int]]:
    """A group's masks, each with how often it was written to."""
    masks = group.get(MASK)
    if masks is None:
        return []
    masks = masks if isinstance(masks, (list, tuple)) else [masks]
    return [(mask, getattr(mask, "_version", 0)) for mask in masks]


def _numbers(index: int, group: Mapping[str, Any]) -> tuple[float, float]:
    """Learning rate and weight decay."""
    what = f"param_groups[{index}]"
    rate = number_of(f"{what}['lr']", group["lr"])
    return rate, number_of(f"{what}['weight_decay']", group["weight_decay"])


def to_text(groups: list[dict[str, Any]]) -> str:
    """What checkpoints have of param_groups: numbers and texts that the optimizer's own
    state lacks, as weight_decay and what schedulers put there."""
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
    """What from_text() puts into each of `groups`. Raises CorruptCheckpoint."""
    try:
        saved_groups = json.loads(text)
        for saved in saved_groups:
            for value in saved.values():
                if not _is_plain(value):
                    raise TypeError(f"{value!r:.60} is neither a number nor text")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptCheckpoint(f"the saved param_groups are none: {error}") from None
    if len(saved_groups) != len(groups):
        return [{} for _ in groups]
    for group, saved in zip(groups, saved_groups, strict=True):
        for key, value in saved.items():
            if isinstance(group.get(key), torch.Tensor) and isinstance(value, str):
                raise CorruptCheckpoint(
                    f"the saved param_groups: '{key}' must be a number, got {value!r:.60}"
                )
    return list(saved_groups)


def from_text(text: str, groups: list[dict[str, Any]]) -> None:
    """Puts that into as many groups; of another number each keeps its own."""
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


def same(a: Any, b: Any) -> bool:
    """Equal, whether in tuples, lists or tensors."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a is b or torch.equal(a, b)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def _short(value: Any) -> str:
    return "another tensor" if isinstance(value, torch.Tensor) else repr(value)[:60]

# SPDX-License-Identifier: Apache-2.0
"""The present values of param_groups, and those that the optimizer received last."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..errors import CorruptCheckpoint, FailedPrecondition, InvalidArgument
from ._native import FIXED_KEYS, KEYWORDS, MASK, Native, is_dense, mask_of, masks_in
from ._options import (
    REFUSED,
    names_of_python,
    rate_of,
)
from ._parameters import Place

# Keys of a group that checkpoints have in other places, or that are fixed at
# construction.
_NOT_SAVED = {"params", "param_names", "lr", MASK, *FIXED_KEYS, *REFUSED, *KEYWORDS}


class Settings:
    """Passes on changes of rates, decays and masks, and detects other changes."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self._fixed = [
            {key: group[key] for key in FIXED_KEYS if key in group} for group in groups
        ]
        self._rates = [float(group["lr"]) for group in groups]
        self._decays = [float(group["weight_decay"]) for group in groups]
        self._masks = [_kept(group) for group in groups]
        self._sizes = sizes_of(groups)

    def fixed(self, index: int) -> Mapping[str, Any]:
        return self._fixed[index]

    def told(self, rates: list[float]) -> None:
        """Records the learning rates that the optimizer took from a restored state."""
        self._rates = rates

    def apply(self, groups: list[dict[str, Any]], native: Native) -> None:
        """Passes changed numbers to the optimizer. Local.

        Raises FailedPrecondition naming a key that cannot change, and InvalidArgument
        or TypeError for an invalid number.
        """
        self.require_same_groups(groups)
        for index, group in enumerate(groups):
            self.require_fixed(index, group)
        with names_of_python():
            for index, group in enumerate(groups):
                rate = number_in(index, group, "lr")
                if rate != self._rates[index]:
                    native.optimizer.set_learning_rate(index, rate)
                    self._rates[index] = rate
        self.apply_decays(groups, native.optimizer)

    def apply_decays(self, groups: list[dict[str, Any]], optimizer: Any) -> None:
        """Passes changed weight decays to an optimizer or engine of the C++ side. Local.
        Raises like apply().
        """
        with names_of_python():
            for index, group in enumerate(groups):
                decay = number_in(index, group, "weight_decay")
                if decay != self._decays[index]:
                    optimizer.set_weight_decay(index, decay)
                    self._decays[index] = decay

    def apply_masks(
        self,
        groups: list[dict[str, Any]],
        optimizer: Any,
        places: list[Place],
        unlike: Callable[[int], torch.Tensor] | None = None,
    ) -> Exception | None:
        """Passes changed masks to an optimizer or engine of the C++ side. Local. If
        ranks compare their masks in the next step, `unlike` makes a group's mask
        different from all others. In this case the error of an invalid mask is
        returned, and the step fails on all ranks.

        Otherwise raises InvalidArgument or TypeError for an invalid mask.
        """
        refusal = None
        with names_of_python():
            for index, group in enumerate(groups):
                if not self.has_other_mask(index, group):
                    continue
                try:
                    mask = mask_of(index, group, places)
                except (InvalidArgument, TypeError) as error:
                    self._masks[index] = [object()]  # the next step reports its mask
                    other = torch.zeros(0) if unlike is None else unlike(index)
                    if not other.numel():
                        raise
                    optimizer.set_exp_avg_mask(index, other)
                    refusal = refusal or error
                else:
                    optimizer.set_exp_avg_mask(index, mask)
                    self._masks[index] = _kept(group)
        return refusal

    def has_other_mask(self, index: int, group: Mapping[str, Any]) -> bool:
        """Returns whether values of masks have changed, in whatever way."""
        before, now = self._masks[index], masks_in(group)
        return len(before) != len(now) or not all(map(_has_values, now, before))

    def require_same_groups(self, groups: list[dict[str, Any]]) -> None:
        require_sizes(self._sizes, groups)

    def require_fixed(self, index: int, group: Mapping[str, Any]) -> None:
        """Raises FailedPrecondition unless `group` has the values of construction."""
        for key, value in self._fixed[index].items():
            if key not in group or not same(group[key], value):
                raise FailedPrecondition(
                    f"param_groups[{index}]['{key}'] was {_short(value)} when the "
                    f"optimizer was made and is {_short(group.get(key))} now, but "
                    f"cannot change{_CURES.get(key, '')}"
                )
        for key in sorted(KEYWORDS & group.keys()):
            raise FailedPrecondition(
                f"param_groups[{index}]['{key}'] was absent when the optimizer was made "
                f"and is {_short(group[key])} now, but cannot change: '{key}' is a "
                "keyword of the constructor"
            )


_CURES = {
    "betas": ": OneCycleLR and CyclicLR cycle it unless they are made with "
    "cycle_momentum=False"
}


def sizes_of(groups: list[dict[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]


def require_sizes(sizes: list[int], groups: list[dict[str, Any]]) -> None:
    """Raises FailedPrecondition unless the groups have `sizes` parameters."""
    if len(groups) != len(sizes):
        raise FailedPrecondition(
            f"param_groups: there were {len(sizes)} groups when the optimizer was made and "
            f"there are {len(groups)} now; add_param_group() adds one before the first step"
        )
    for index, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        now = len(group.get("params", ()))
        if now != size:
            raise FailedPrecondition(
                f"param_groups[{index}]['params']: there were {size} parameters when the "
                f"optimizer was made and there are {now} now; make another optimizer"
            )


def _kept(group: Mapping[str, Any]) -> list[Any]:
    return [
        mask.detach().to(torch.bool, copy=True) if is_dense(mask) else mask
        for mask in masks_in(group)
    ]


def _has_values(mask: Any, kept: Any) -> bool:
    if not is_dense(mask) or not is_dense(kept):
        return mask is kept
    is_alike = mask.shape == kept.shape and mask.device == kept.device
    return is_alike and bool((mask == kept).all())


def set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def number_in(index: int, group: Mapping[str, Any], key: str) -> float:
    """Returns the learning rate or decay of a group.

    Raises FailedPrecondition if it is missing, and the errors of rate_of().
    """
    what = f"param_groups[{index}]['{key}']"
    if key not in group:
        raise FailedPrecondition(
            f"{what} was removed after the optimizer was made: put it back"
        )
    return rate_of(what, group[key])


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
        for key in _NOT_SAVED & saved.keys():  # these are in the state or in the script
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


def same(a: Any, b: Any) -> bool:
    """Returns whether two values are equal. Tuples, lists and tensors are compared by content."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a is b or torch.equal(a, b)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    try:
        return bool(a == b)
    except (RuntimeError, TypeError, ValueError):  # an array and a number
        return False


def _short(value: Any) -> str:
    return "another tensor" if isinstance(value, torch.Tensor) else repr(value)[:60]

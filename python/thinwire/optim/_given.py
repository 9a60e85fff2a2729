# SPDX-License-Identifier: Apache-2.0
"""The arguments grads and output_params of step()."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch

from .._memory import require_dense, require_shape
from ..errors import InvalidArgument
from ._parameters import Place, all_parameters, is_expanded

Tensors: TypeAlias = Iterable[torch.Tensor | None]
PerParameter: TypeAlias = Tensors | Sequence[Tensors]
"""One entry per parameter if there is one group; for several, a list or tuple of such
lists.
"""


def per_place(
    name: str, given: PerParameter, groups: list[dict[str, Any]], places: list[Place]
) -> list[torch.Tensor | None]:
    """Returns the given tensors in the order of `places`. Local. Entries of frozen or
    repeated parameters are left out.

    Raises InvalidArgument or TypeError naming `name` and the entry that does not fit.
    """
    lists = _by_group(name, given, len(groups))
    for number, (entries, group) in enumerate(zip(lists, groups, strict=True)):
        if len(entries) != len(group["params"]):
            raise InvalidArgument(
                f"{name}: group {number} has {len(group['params'])} parameters, got "
                f"{len(entries)} tensors"
            )
    of: dict[int, torch.Tensor | None] = {}
    flat = [tensor for entries in lists for tensor in entries]
    for place, tensor in zip(all_parameters(groups), flat, strict=True):
        if tensor is not None:
            _require_fits(name, place, tensor)
            if name == "output_params":
                _require_writable(f"{name} of parameter '{place.name}'", tensor)
        of.setdefault(id(place.tensor), tensor)
    return [of[id(place.tensor)] for place in places]


def _by_group(
    name: str, given: PerParameter, num_groups: int
) -> list[list[torch.Tensor | None]]:
    if isinstance(given, torch.Tensor) or not isinstance(given, Iterable):
        raise TypeError(
            f"{name}: must be tensors, one for each parameter, or a list of those for each "
            f"group, got {type(given).__name__}"
        )
    entries: list[Any] = list(given)
    if entries and all(isinstance(entry, (list, tuple)) for entry in entries):
        if len(entries) != num_groups:
            raise InvalidArgument(
                f"{name}: must be one list for each of {num_groups} groups, got "
                f"{len(entries)}"
            )
        return [list(entry) for entry in entries]
    if num_groups != 1:
        raise InvalidArgument(
            f"{name}: must be a list of tensors for each of {num_groups} groups, got one "
            f"of {len(entries)} entries"
        )
    return [entries]


def _require_fits(name: str, place: Place, tensor: Any) -> None:
    what = f"{name} of parameter '{place.name}'"
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what}: must be a tensor, got {type(tensor).__name__}")
    require_dense(place.name, tensor)
    require_shape(what, tensor.shape, place.tensor.shape)
    if tensor.device.type != place.tensor.device.type or not tensor.is_floating_point():
        raise InvalidArgument(
            f"{what}: must be floating-point on {place.tensor.device.type}, got "
            f"{tensor.dtype} on {tensor.device.type}"
        )


def _require_writable(what: str, tensor: torch.Tensor) -> None:
    if is_expanded(tensor):
        raise InvalidArgument(
            f"{what}: must not be expanded, its elements share memory"
        )
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise InvalidArgument(
            f"{what}: must not be made in torch.inference_mode(), torch does not write into "
            "such a tensor outside of it"
        )

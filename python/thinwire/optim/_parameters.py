# SPDX-License-Identifier: Apache-2.0
"""Selection of an optimizer's parameters, with errors for those that it cannot
train.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from .._log import logger, warn
from ..errors import FailedPrecondition, InvalidArgument
from ._options import DTYPES


@dataclass(frozen=True)
class Place:
    """A parameter with its name and the number of its group."""

    name: str
    tensor: torch.Tensor
    group: int
    is_wide: bool = False
    """Whether this is an fp32 parameter of a 16-bit model."""


def all_parameters(groups: list[dict[str, Any]]) -> Iterator[Place]:
    """Returns every parameter of every group, including frozen ones and repetitions."""
    index = 0
    for number, group in enumerate(groups):
        names = group.get("param_names")
        for k, tensor in enumerate(group["params"]):
            name = names[k] if names else f"param.{index}"
            yield Place(name, tensor, number)
            index += 1


def distinct(groups: list[dict[str, Any]]) -> Iterator[Place]:
    """Returns the parameters that require a gradient, each once and in order."""
    seen: set[int] = set()
    for place in all_parameters(groups):
        if place.tensor.requires_grad and id(place.tensor) not in seen:
            seen.add(id(place.tensor))
            yield place


def trainable(groups: list[dict[str, Any]]) -> list[Place]:
    """Returns the distinct parameters that require a gradient, in order.

    Raises InvalidArgument naming the first parameter that Thinwire cannot train, and
    FailedPrecondition if no parameter requires a gradient.
    """
    places: list[Place] = []
    for place in distinct(groups):
        others = [p for p in places if p.tensor.dtype != torch.float32] or places
        _require_supported(place, others[0] if others else None)
        places.append(place)
    if not places:
        raise FailedPrecondition(
            "params: none of them requires a gradient, so there is nothing to train"
        )
    _require_apart(places)
    narrow = [p.tensor.dtype for p in places if p.tensor.dtype != torch.float32]
    return marked(places, narrow[0] if narrow else None)


def marked(places: list[Place], narrow: torch.dtype | None) -> list[Place]:
    """Returns the places, with `is_wide` for fp32 parameters if others have the dtype
    `narrow`.
    """
    if all(place.tensor.dtype != narrow for place in places):
        return places
    return [replace(p, is_wide=p.tensor.dtype == torch.float32) for p in places]


def warn_of_order(places: list[Place]) -> None:
    """Warns about parameters that become contiguous, or logs the device of the
    arrays.
    """
    device = places[0].tensor.device
    if device.type != "cpu":
        logger.info(
            "parameters stay on %s; averages, updates and states are in host memory, as with "
            "offload_optimizer",
            device,
        )
        return
    found = [place.name for place in places if not place.tensor.is_contiguous()]
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        warn(
            f"parameter '{found[0]}'{more}: memory becomes contiguous, because all "
            "parameters are parts of one flat array; channels_last does not last. Inputs "
            "in channels_last still work"
        )


def refuse_module(params: Any) -> None:
    if isinstance(params, torch.nn.Module):
        raise InvalidArgument(
            "params: must be parameters, got the module itself; give "
            "model.parameters() or model.named_parameters()"
        )


def with_names(params: Any) -> Any:
    """Returns the groups, and marks empty groups as named if other groups have names.
    torch requires names in all groups or in none, and a rank without experts has empty
    groups.
    """
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        return params
    given = list(params)
    groups = [group for group in given if isinstance(group, dict)]
    lists = [group.get("params") for group in groups]
    if any(isinstance(p, list) and p and isinstance(p[0], tuple) for p in lists):
        for group, its_list in zip(groups, lists, strict=True):
            if its_list == []:
                group.setdefault("param_names", [])
    return given


def _require_supported(place: Place, first: Place | None) -> None:
    tensor = place.tensor
    what = _unsupported(tensor)
    if what is None and first is not None:
        require_same_device(place, first)
        if len({tensor.dtype, first.tensor.dtype, torch.float32}) > 2:
            what = f"is {tensor.dtype}, '{first.name}' {first.tensor.dtype}: all must be of one dtype, or float32 beside one of 16 bits"
    if what is not None:
        raise InvalidArgument(f"parameter '{place.name}' {what}")


def require_same_device(place: Place, first: Place) -> None:
    if place.tensor.device != first.tensor.device:
        raise InvalidArgument(
            f"parameter '{place.name}' is on {place.tensor.device}, '{first.name}' on "
            f"{first.tensor.device}: all must be on one device"
        )


def _require_apart(places: list[Place]) -> None:
    """Raises an error if parameters share memory; only contiguous ones are checked."""
    spans = sorted(
        (p.tensor.data_ptr(), p.tensor.data_ptr() + p.tensor.nbytes, p.name)
        for p in places
        if p.tensor.numel() > 0 and p.tensor.is_contiguous()
    )
    for (_, end, name), (begin, _, other) in itertools.pairwise(spans):
        if begin < end:
            raise InvalidArgument(
                f"parameter '{other}' shares memory with '{name}': make one of them, of "
                "which the other is a view in forward()"
            )


def _unsupported(tensor: torch.Tensor) -> str | None:
    if _is_dtensor(tensor):
        return (
            "is a DTensor: Thinwire shards with zero stage 1 or 2 itself; remove "
            "fully_shard"
        )
    if getattr(tensor, "_is_fsdp_flattened", False) or hasattr(
        tensor, "_unpadded_unsharded_size"
    ):
        return "belongs to FSDP: Thinwire shards with zero stage 1 or 2 itself; do not wrap the model"
    if hasattr(tensor, "ds_id"):
        return "is managed by DeepSpeed: make the model without deepspeed.zero.Init"
    if tensor.is_meta:
        return "is on the device meta and has no values: load or initialize it first"
    if tensor.is_quantized:
        return "is quantized: only floating-point parameters can be trained"
    if tensor.layout != torch.strided:
        return f"is sparse ({tensor.layout}): must be dense"
    if tensor.is_complex():
        return f"is complex ({tensor.dtype}): train torch.view_as_real of it"
    if is_expanded(tensor):
        return "is expanded, so that its elements share memory: clone() it"
    if tensor.dtype not in DTYPES:
        return f"is {tensor.dtype}: must be float32, float16 or bfloat16"
    return None


def is_expanded(tensor: torch.Tensor) -> bool:
    """Returns whether a stride of 0 puts several elements at one place in memory."""
    return any(
        n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _is_dtensor(tensor: torch.Tensor) -> bool:
    # If there is a DTensor, its module has been imported.
    module = sys.modules.get("torch.distributed.tensor")
    kind = getattr(module, "DTensor", None)
    return kind is not None and isinstance(tensor, kind)

# SPDX-License-Identifier: Apache-2.0
"""Attributes by which other frameworks mark parameters that not all ranks hold, and the
mpu objects that know the holders.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import torch

from .. import _core
from .._agreement import gathered
from ..comm.modules import bytes_of
from ..errors import InvalidArgument
from ._experts import KEY, Experts
from ._parameters import Place

Groups = list[dict[str, Any]]

SPLIT = ("model_parallel", "tensor_model_parallel")
"""Attributes of a tensor that is one part of a parameter of the whole model."""


def has_groups(mpu: Any) -> bool:
    return callable(getattr(mpu, "get_data_parallel_group", None))


def require_mpu(mpu: Any, name: str) -> None:
    """Raises InvalidArgument unless `mpu` is None or knows the ranks that average."""
    if mpu is not None and not has_groups(mpu):
        raise InvalidArgument(
            f"{name}: must have get_data_parallel_group(), got {type(mpu).__name__}"
        )


def data_parallel_group(mpu: Any) -> Any:
    """Returns the group of ranks that average, or None if `mpu` does not know it."""
    return mpu.get_data_parallel_group() if has_groups(mpu) else None


def model_parallel_group(mpu: Any) -> Any:
    """Returns the group of ranks that hold one model together, or None."""
    if has_groups(mpu):
        for name in ("get_model_parallel_group", "get_tensor_model_parallel_group"):
            if callable(get := getattr(mpu, name, None)):
                return get()
    return None


def require_model_parallel(config: _core.Config) -> None:
    """Raises InvalidArgument for options that exclude a model-parallel group. Local,
    before anything is made.
    """
    if config.semantics != _core.Semantics.corrected:
        raise InvalidArgument(
            "semantics: must be corrected with a model-parallel group, got deepspeed"
        )
    if config.optimizer_name() == "lean_onebit_adam":
        raise InvalidArgument(
            "optimizer: must be another one than lean 1-bit Adam with a model-parallel "
            "group"
        )


def counted_elsewhere(mpu: Any, experts: Experts, places: list[Place]) -> list[int]:
    """Returns the indices of parameters that earlier ranks of the tensor-parallel group
    also hold, so that those ranks count them in the norm. The tensor-parallel group is
    all or part of the model-parallel group, over which the call is collective.
    `experts` makes communicators.

    Parameters are the same if names, shapes and values are equal, unless one has a true
    attribute of SPLIT.
    """
    get = getattr(mpu, "get_tensor_model_parallel_group", None)
    comm = experts.of(get() if callable(get) else model_parallel_group(mpu))
    own = [
        ""
        if mark_of(p.tensor)
        else f"{p.name} {tuple(p.tensor.shape)} "
        f"{_core.checksum(bytes_of([p.tensor.cpu()]))}"
        for p in places
    ]
    texts = gathered(comm, json.dumps(own))
    earlier = {key for text in texts[: comm.rank] for key in json.loads(text) if key}
    return [k for k, key in enumerate(own) if key in earlier]


def mark_of(tensor: torch.Tensor) -> str:
    """Returns the name of a true attribute in SPLIT, or ""."""
    return next((name for name in SPLIT if getattr(tensor, name, False)), "")


def is_expert(tensor: torch.Tensor) -> bool:
    """Returns whether DeepSpeed or Megatron has marked an expert's parameter."""
    return not getattr(tensor, "allreduce", True)


def require_group(parameters: Iterable[tuple[str, torch.Tensor]], cure: str) -> None:
    """Raises InvalidArgument for a part of a parameter, because all ranks would average
    it.
    """
    for name, tensor in parameters:
        if mark := mark_of(tensor):
            raise InvalidArgument(
                f"parameter '{name}' has the attribute {mark}: ranks hold different parts of it, "
                f"and all of them would average it; {cure}"
            )


def has_marked(group: dict[str, Any], of_all: bool = False) -> bool:
    """Returns whether any parameter of the group, or with `of_all` each, is a marked
    expert.
    """
    marks = map(is_expert, group["params"])
    return bool(group.get("moe")) or (all(marks) if of_all else any(marks))


def find_experts(groups: Groups, mpu: Any, num_ranks: int) -> list[int]:
    """Writes expert_group into groups of experts that lack it. Local. Parameters are
    experts if they have the attribute allreduce=False, or if their group has a true
    `moe`. `mpu`, or DeepSpeed if it is loaded, knows the process group. Experts in a
    group with other parameters are split off into new groups at the end. A single rank,
    which holds all experts, splits groups in the same way, so that states fit any
    number of ranks.

    Returns for each new group the number of the group that it was split from. Raises
    InvalidArgument naming an expert whose process group is unknown.
    """
    alone = _core.local_group(1, 60.0)[0] if num_ranks == 1 else None
    if alone is not None and all(has_marked(group, of_all=True) for group in groups):
        return []  # some group must be without expert_group
    changes: list[tuple[int, Groups]] = []
    for number, group in enumerate(groups):
        if group.get(KEY) is not None:
            continue
        tensors = group["params"]
        names = group.get("param_names", [str(k) for k in range(len(tensors))])
        held: dict[Any, list[int]] = {None: []}  # indices by name of the experts' group
        for k, tensor in enumerate(tensors):
            is_one = bool(group.get("moe")) or is_expert(tensor)
            named = getattr(tensor, "group_name", group.get("name"))
            held.setdefault((named,) if is_one else None, []).append(k)
        if len(held) == 1:
            continue
        parts = []
        for named, indices in held.items():
            part: dict[str, Any] = {"params": [tensors[k] for k in indices]}
            if "param_names" in group:
                part["param_names"] = [names[k] for k in indices]
            if named is not None:
                part[KEY] = _holders(mpu, named[0]) if alone is None else alone
                if part[KEY] is None:
                    raise InvalidArgument(
                        f"param_groups[{number}]: parameter '{names[indices[0]]}' is marked as "
                        f"an expert (allreduce=False, or 'moe' of its group), and which ranks "
                        f"hold it is unknown (group_name {named[0]!r}): give it in a group "
                        f"with {KEY}=, the process group of these ranks"
                    )
            if indices:
                parts.append(part)
        changes.append((number, parts))
    sources = []
    for number, (first, *others) in changes:
        groups[number].update(first)
        groups.extend({**groups[number], **part} for part in others)
        sources += [number] * len(others)
    return sources


def _holders(mpu: Any, name: Any) -> Any:
    """Returns the process group of this rank's experts, or None if it is unknown."""
    get = getattr(mpu, "get_expert_data_parallel_group", None)
    if callable(get):
        return get()
    made = sys.modules.get("deepspeed.utils.groups")
    return made and made._get_expert_data_parallel_group_dict().get(name)

# SPDX-License-Identifier: Apache-2.0
"""Construction of the native optimizer from parameter groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .. import _core
from .._memory import FlatMemory, require_shape
from .._staging import StagedMemory
from ..errors import InvalidArgument
from ._experts import KEY as EXPERTS
from ._experts import Experts
from ._options import (
    DTYPES,
    GROUP_KEYS,
    KINDS,
    REFUSED,
    defaults,
    names_of,
    names_of_python,
    rate_of,
    set_optimizer,
    to_text,
)
from ._parameters import Place

# Keys of a group that C++ reads at construction. Groups may also contain keys of other
# programs.
FIXED_KEYS = (*("betas", "eps", "non_freeze", "max_coeff", "min_coeff"), EXPERTS)
# Keys of a group that are options of the whole optimizer, and their names in a file.
WHOLE = {
    "max_grad_norm": "gradient_clipping",
    "bias_correction": "optimizer.params.bias_correction",
}
# Other options of the whole optimizer, which groups must not have.
KEYWORDS = {name for kind in KINDS for name in names_of(kind)}.difference(
    FIXED_KEYS, WHOLE
)
# The value of this key may change.
MASK = "exp_avg_mask"
# Exchanges through Python cost more, so larger buckets make them fewer.
PYTHON_BUCKET = 1 << 23
_CPP_BACKENDS = ("local", "mpi")

Spec = tuple[str, tuple[int, ...], int]


@dataclass(frozen=True)
class Native:
    optimizer: _core.Optimizer
    memory: FlatMemory
    layout: _core.Layout
    config: _core.Config
    places: list[Place]

    def close(self) -> None:
        self.optimizer.close()

    def unlike_others(
        self, comm: _core.Communicator
    ) -> Callable[[int], torch.Tensor] | None:
        """Returns a function that makes, for a group, a mask unlike the masks of all
        other ranks. Returns None unless ranks compare their masks in the next step.
        """
        if (
            comm.size == 1
            or self.config.optimizer_name() in ("adam", "lamb")
            or self.config.semantics != _core.Semantics.corrected
            or self.optimizer.phase == "local"
        ):
            return None

        def make(group: int) -> torch.Tensor:
            in_group = (p for p in self.places if p.group == group and not p.is_wide)
            size = sum(p.tensor.numel() for p in in_group)
            return torch.full((size,), 2.0 + comm.rank)

        return make


def make_config(
    kind: str,
    keywords: Mapping[str, Any],
    groups: list[dict[str, Any]],
    places: list[Place],
    backend: str,
) -> _core.Config:
    """Returns all settings for C++. Local.

    Raises TypeError and InvalidArgument naming the keyword.
    """
    config = _core.Config()
    config.precision.dtype = DTYPES[places[0].tensor.dtype]
    # Only a GradScaler scales the loss.
    config.precision.loss_scale.initial_scale = 1.0
    config.precision.loss_scale.dynamic = False
    own = defaults(kind) | {k: v for k, v in keywords.items() if v is not None}
    of_groups = (*FIXED_KEYS[2:], MASK)
    is_plain = len(groups) == 1 and not any(
        key in groups[0] and groups[0][key] != own.get(key) for key in of_groups
    )
    numbers = _numbers(groups[0], None if is_plain else 0)
    set_optimizer(config, kind, {**keywords, **numbers})
    if own["bucket_elements"] is None and backend not in _CPP_BACKENDS:
        config.comm.bucket_elements = PYTHON_BUCKET
    require_own_keys(groups, config)
    if not is_plain:
        set_groups(config, groups, places)
    return config


def require_own_keys(groups: list[dict[str, Any]], config: _core.Config) -> None:
    """Raises InvalidArgument if a group sets an option of the whole optimizer."""
    own = config.keywords()
    for index, group in enumerate(groups):
        for key, text in REFUSED.items():
            if group.get(key):
                raise InvalidArgument(
                    f"param_groups[{index}]['{key}'] must be False or None: {text}"
                )
        for key, in_file in WHOLE.items():
            if key in group and group[key] != own[key]:
                raise InvalidArgument(
                    f"param_groups[{index}]['{key}'] must be {own[key]}, as the optimizer's: it "
                    f"holds for all groups; give {key}= to the optimizer, or "
                    f"{in_file} in a configuration"
                )
        for key in sorted(KEYWORDS & group.keys()):
            raise InvalidArgument(
                f"param_groups[{index}]['{key}'] must be absent, it holds for all groups: "
                f"'{key}' is a keyword of the constructor, or a key of the configuration"
            )


def make_native(
    comm: _core.Communicator,
    config: _core.Config,
    places: list[Place],
    num_groups: int,
    broadcast: bool,
    experts: Experts,
) -> Native:
    """Makes the optimizer and its arrays, with rank 0's values if `broadcast`.
    Collective. The parameters themselves do not change.

    Raises InvalidArgument on all ranks if they differ in parameters or options.
    """
    specs: list[Spec] = [(p.name, tuple(p.tensor.shape), p.group) for p in places]
    layout = _core.Layout(specs, num_groups)
    dtype = places[0].tensor.dtype
    num_wide = sum(place.is_wide for place in places)
    options = f"{dtype} float32={num_wide} broadcast={broadcast} hierarchy={config.comm.hierarchy.name} "
    options += f"ranks_per_host={config.comm.ranks_per_host} "
    options += f"outer.sync_every={config.sync_every}\n"
    experts.require_same(comm, places, layout.describe(), options)
    tensors = [p.tensor for p in places]
    kind = FlatMemory if tensors[0].device.type == "cpu" else StagedMemory
    memory = kind(tensors, layout, dtype, True, num_wide)
    if broadcast and num_wide == 0:
        experts.broadcast(comm, places, memory.params)
    elif broadcast and comm.size > 1:
        for values in (memory.params, memory.wide_params):
            comm.broadcast(values.view(torch.uint8), 0)
    with names_of_python():
        made = _core.Optimizer(
            comm, layout, config, memory.handed_params, experts=experts.of_groups
        )
    return Native(made, memory, layout, config, places)


def _numbers(group: Mapping[str, Any], index: int | None) -> dict[str, Any]:
    """Returns a group's numbers. With an index of None, errors name the constructor's
    keywords.
    """
    numbers = {key: group[key] for key in GROUP_KEYS}
    for key in ("lr", "weight_decay"):
        what = key if index is None else f"param_groups[{index}]['{key}']"
        numbers[key] = rate_of(what, group[key])
    return numbers


def set_groups(
    config: _core.Config, groups: list[dict[str, Any]], places: list[Place]
) -> None:
    """Writes the groups' settings into the configuration's optimizer. Local.

    Raises TypeError and InvalidArgument naming the group and the key.
    """
    texts, masks = [], []
    for index, group in enumerate(groups):
        options = _numbers(group, index)
        of_kind = ("non_freeze", "max_coeff", "min_coeff")
        options |= {key: group[key] for key in of_kind if key in group}
        texts.append(to_text(options))
        has_mask = group.get(MASK) is not None
        if has_mask and group.get(EXPERTS) is not None:
            raise InvalidArgument(
                f"param_groups[{index}]['exp_avg_mask']: must be None with '{EXPERTS}', such "
                "a group is averaged exactly"
            )
        masks.append(mask_of(index, group, places) if has_mask else None)
    config.set_groups(texts, masks)


def masks_in(group: Mapping[str, Any]) -> list[Any]:
    """Returns the masks of a group, of any type. The result is empty if there are
    none.
    """
    masks = group.get(MASK)
    if masks is None:
        return []
    return list(masks) if isinstance(masks, (list, tuple)) else [masks]


def is_dense(value: Any) -> bool:
    is_tensor = isinstance(value, torch.Tensor)
    return is_tensor and value.layout == torch.strided and not value.is_meta


def _is_flat(mask: Any, size: int) -> bool:
    return is_dense(mask) and mask.shape == (size,)


def mask_of(index: int, group: Mapping[str, Any], places: list[Place]) -> torch.Tensor:
    """Returns a group's masks in the layout's order, without fp32 parameters of 16-bit
    models.
    """
    masks, params = masks_in(group), group["params"]
    if group.get(MASK) is None:
        return torch.zeros(0)
    what = f"param_groups[{index}]['exp_avg_mask']"
    sizes = [p.numel() for p in params]
    if len(masks) == 1 < len(params) and _is_flat(masks[0], sum(sizes)):
        masks = masks[0].split(sizes)
    if len(masks) != len(params):
        raise InvalidArgument(
            f"{what}: must be one tensor for each of the group's {len(params)} "
            f"parameters, or one of all their {sum(sizes)} elements, got {len(masks)}"
        )
    of = {id(p): mask for p, mask in zip(params, masks, strict=True)}
    parts = []
    for place in places:
        if place.group != index:
            continue
        mask = of[id(place.tensor)]
        if not isinstance(mask, torch.Tensor):
            raise TypeError(f"{what}: must be tensors, got {mask!r}")
        if not is_dense(mask) or mask.is_complex() or mask.is_quantized:
            raise InvalidArgument(
                f"{what}: of parameter '{place.name}' it must be dense, real and not on the "
                f"device meta, got {mask.dtype} of layout {mask.layout} on {mask.device}"
            )
        if not _is_flat(mask, place.tensor.numel()):
            require_shape(
                f"{what} of parameter '{place.name}'", mask.shape, place.tensor.shape
            )
        if not bool(((mask == 0) | (mask == 1)).all()):
            raise InvalidArgument(
                f"{what}: of parameter '{place.name}' its elements must be 0 or 1"
            )
        if place.is_wide:
            if not bool(mask.all()):
                raise InvalidArgument(
                    f"{what}: of parameter '{place.name}' its elements must be 1: it is "
                    "float32 in a model of 16 bits, and averaged exactly"
                )
            continue
        parts.append(mask.detach().reshape(-1).to("cpu", torch.float32))
    return torch.cat(parts) if parts else torch.zeros(0)

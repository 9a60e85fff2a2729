# SPDX-License-Identifier: Apache-2.0
"""What the device path reads of a configuration, and what it refuses by name."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from ..errors import InvalidArgument, Unavailable
from .rows import Spec

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
AUTO_FREEZE = -1


@dataclass
class Group:
    """The options of one group of parameters, filled in."""

    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    min_coeff: float
    max_coeff: float
    exp_avg_mask: torch.Tensor | None
    non_freeze: bool


@dataclass
class Settings:
    """Those of all groups. `own` are the options of the C++ struct, by their names."""

    name: str
    own: Any
    groups: list[Group]
    dtype: torch.dtype
    max_grad_norm: float
    lagged_clipping: bool
    bucket_elements: int
    verify_every: int
    loss_scale: Any
    skip_nonfinite: bool
    decoupled_decay: bool = True
    l1_scale: bool = False
    residual_dtype: torch.dtype = torch.float32
    outlier_gate: float = 10.0
    exact_groups: frozenset[int] = field(default_factory=frozenset)

    def describe(self) -> str:
        """What ranks must have in common, a line per group."""
        skipped = {"groups", "exchange"}
        names = [n for n in dir(self.own) if n[0] != "_" and n not in skipped]
        values = [(n, getattr(self.own, n)) for n in names]
        line = " ".join(f"{n}={v}" for n, v in values if not callable(v))
        text = f"{self.name} {line} max_grad_norm={self.max_grad_norm} "
        text += f"lagged_clipping={self.lagged_clipping} "
        text += (
            f"bucket_elements={self.bucket_elements} verify_every={self.verify_every} "
        )
        text += f"skip_nonfinite={self.skip_nonfinite} dtype={self.dtype}\n"
        for k, g in enumerate(self.groups):
            masked = (
                "none" if g.exp_avg_mask is None else int((g.exp_avg_mask == 0).sum())
            )
            text += f"group {k} learning_rate={g.learning_rate} beta1={g.beta1} "
            text += (
                f"beta2={g.beta2} epsilon={g.epsilon} weight_decay={g.weight_decay} "
            )
            text += f"coeffs={g.min_coeff}..{g.max_coeff} masked={masked} "
            text += f"non_freeze={g.non_freeze}\n"
        return text


def settings_of(config: Any, specs: list[Spec]) -> Settings:
    """Raises Unavailable for what the device path does not have, InvalidArgument for masks that
    do not fit."""
    _refuse(config)
    own = config.optimizer
    name = config.optimizer_name()
    num_groups = max([group + 1 for _, _, group in specs], default=1)
    given = list(getattr(own, "groups", []))
    if given and len(given) < num_groups:
        raise InvalidArgument(
            f"groups must be empty or {num_groups} entries, one per group of the layout, got "
            f"{len(given)} entries"
        )
    groups = [
        _group(own, given[g] if given else None)
        for g in range(len(given) or num_groups)
    ]
    _check_ranges(config, groups)
    _check_masks(groups, specs)
    settings = Settings(
        name=name,
        own=own,
        groups=groups,
        dtype=DTYPES[config.precision.dtype.name],
        max_grad_norm=config.gradient_clipping,
        lagged_clipping=config.lagged_clipping,
        bucket_elements=config.comm.bucket_elements,
        loss_scale=config.precision.loss_scale,
        verify_every=config.comm.verify_every,
        skip_nonfinite=config.precision.check_grad_overflow,
    )
    if name == "adam":
        settings.decoupled_decay = own.decoupled_decay
    elif name != "lamb":
        settings.residual_dtype = DTYPES[own.residual_dtype.name]
        settings.exact_groups = frozenset(
            g for g, o in enumerate(groups) if o.non_freeze
        )
    if name == "onebit_lamb":
        settings.outlier_gate = 2.0
    return settings


def _refuse(config: Any) -> None:
    refused = {
        "semantics deepspeed": config.semantics.name == "deepspeed",
        f"zero stage {config.zero.stage}": config.zero.stage > 0,
        "lean 1-bit Adam": config.optimizer_name() == "lean_onebit_adam",
        "hierarchy by_host": config.comm.hierarchy.name == "by_host",
        "hierarchy auto with ranks_per_host above 1": (
            config.comm.hierarchy.name == "auto" and config.comm.ranks_per_host > 1
        ),
        "compressed_during_backward": config.comm.compressed_during_backward,
        "a master_dtype of 16 bits": config.precision.master_dtype.name != "float32",
        "a state_dtype of 16 bits": config.precision.state_dtype.name != "float32",
    }
    for what, is_asked_for in refused.items():
        if is_asked_for:
            raise Unavailable(f"device: {what} works for parameters on the CPU only")


def _group(own: Any, given: Any) -> Group:
    def value(name: str, otherwise: float = 0.0) -> float:
        set_here = getattr(given, name, None)
        return float(getattr(own, name, otherwise) if set_here is None else set_here)

    mask = getattr(given, "exp_avg_mask", None)
    mask = None if mask is None else torch.as_tensor(mask).reshape(-1)
    return Group(
        learning_rate=value("learning_rate"),
        beta1=value("beta1"),
        beta2=value("beta2"),
        epsilon=value("epsilon"),
        weight_decay=value("weight_decay"),
        min_coeff=value("min_coeff"),
        max_coeff=value("max_coeff"),
        exp_avg_mask=mask if mask is not None and mask.numel() else None,
        non_freeze=bool(getattr(given, "non_freeze", False)),
    )


def _check_ranges(config: Any, groups: list[Group]) -> None:
    """Each group's numbers, as if all parameters had them."""
    one = copy.copy(config)
    one.optimizer.groups = []
    for group in groups:
        for item in fields(group):
            value = getattr(group, item.name)
            if hasattr(one.optimizer, item.name) and isinstance(value, float):
                setattr(one.optimizer, item.name, value)
        one.validate(1)


def _check_masks(groups: list[Group], specs: list[Spec]) -> None:
    for g, group in enumerate(groups):
        if group.exp_avg_mask is None:
            continue
        size = sum(math.prod(shape) for _, shape, k in specs if k == g)
        if group.exp_avg_mask.numel() != size:
            raise InvalidArgument(
                f"groups[{g}].exp_avg_mask must be of {size} elements, as its group is, got "
                f"{group.exp_avg_mask.numel()}"
            )

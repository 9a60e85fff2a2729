# SPDX-License-Identifier: Apache-2.0
"""Methods of DeepSpeed's engine for features that Thinwire lacks, which raise
Unavailable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import Unavailable

_FEATURES = {
    "pipeline parallelism": (
        "train_batch",
        "eval_batch",
        "inference_batch",
        "set_dataloader",
        "set_dataiterator",
        "set_batch_fn",
        "set_has_attention_mask",
        "is_first_stage",
        "is_last_stage",
        "reset_activation_shape",
    ),
    "files and groups of its own for experts": (
        "save_moe_checkpoint",
        "load_moe_state_dict",
        "get_expert_data_parallel_group",
    ),
    "DeepCompile": ("compile", "launch_compile_passes", "is_deepcompile_active"),
    "sequence parallelism": (
        "get_sequence_parallel_group",
        "get_sequence_parallel_world_size",
        "get_sequence_parallel_rank",
    ),
}

_CURES = {
    "compile": "; compile the module: torch.compile(model) before initialize()",
    "save_moe_checkpoint": "; save_checkpoint() saves experts too",
    "load_moe_state_dict": "; load_checkpoint() loads experts too",
}


def refusal(name: str, why: str) -> Callable[..., NoReturn]:
    """Returns a method of this name that raises Unavailable with the reason."""

    def refuse(self: object, *_: Any, **__: Any) -> NoReturn:
        raise Unavailable(f"{name}: {why}")

    refuse.__name__ = name
    refuse.__doc__ = f"Raises Unavailable: {why}."
    return refuse


def set_refusals(owner: type[object]) -> None:
    """Adds the methods of these features, which raise Unavailable, to a class."""
    for feature, names in _FEATURES.items():
        for name in names:
            why = f"Thinwire has no {feature}{_CURES.get(name, '')}"
            setattr(owner, name, refusal(name, why))

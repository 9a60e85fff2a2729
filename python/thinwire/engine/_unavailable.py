# SPDX-License-Identifier: Apache-2.0
"""Methods of DeepSpeed's engine for what Thinwire does not have: each says so."""

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
    "mixtures of experts": (
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

_CURES = {"compile": "; compile the module: torch.compile(model) before initialize()"}


class NotHere:
    """Methods that raise Unavailable."""


def _refusal(name: str, feature: str) -> Callable[..., NoReturn]:
    def refuse(self: object, *_: Any, **__: Any) -> NoReturn:
        raise Unavailable(f"{name}: Thinwire has no {feature}{_CURES.get(name, '')}")

    refuse.__name__ = name
    refuse.__doc__ = f"Raises Unavailable: there is no {feature}."
    return refuse


for _feature, _names in _FEATURES.items():
    for _name in _names:
        setattr(NotHere, _name, _refusal(_name, _feature))

# SPDX-License-Identifier: Apache-2.0
"""The argument client_state of save_checkpoint(), as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .._checkpoints import OWN_NAMES, Found
from ..errors import CorruptCheckpoint, InvalidArgument

CLIENT_STATE = OWN_NAMES + "client_state"

# Keys of DeepSpeed's own checkpoints.
RESERVED = frozenset(
    (
        "module",
        "buffer_names",
        "optimizer",
        "param_shapes",
        "frozen_param_shapes",
        "frozen_param_fragments",
        "shared_params",
        "lr_scheduler",
        "data_sampler",
        "random_ltd",
        "sparse_tensor_module_names",
        "skipped_steps",
        "global_steps",
        "global_samples",
        "dp_world_size",
        "mp_world_size",
        "ds_config",
        "ds_version",
    )
)


def to_text(client_state: Mapping[str, Any]) -> str:
    """Returns the text. Raises KeyError or InvalidArgument for what cannot be held."""
    taken = sorted(name for name in client_state if name in RESERVED)
    if taken:
        raise KeyError(
            f"client_state: {', '.join(taken)}: reserved for the engine's own state"
        )
    _require_plain(client_state, "client_state")
    return json.dumps(client_state)


def from_text(report: Found) -> dict[str, Any]:
    """Returns the saved value; empty if there was none. Raises CorruptCheckpoint."""
    text = report.common.get(CLIENT_STATE, "{}")
    try:
        state: dict[str, Any] = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptCheckpoint(f"{CLIENT_STATE} is no JSON: {error}") from None
    return state


def _require_plain(value: Any, path: str) -> None:
    if isinstance(value, Mapping):
        for name, member in value.items():
            if not isinstance(name, str):
                raise InvalidArgument(f"{path}: names must be text, got {name!r}")
            _require_plain(member, f"{path}['{name}']")
    elif isinstance(value, (list, tuple)):
        for number, member in enumerate(value):
            _require_plain(member, f"{path}[{number}]")
    elif not isinstance(value, (str, int, float, bool, type(None))):
        raise InvalidArgument(
            f"{path}: must be what JSON can say, got {type(value).__name__}; tensors go "
            "into `extra` of thinwire.save"
        )

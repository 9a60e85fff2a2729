# SPDX-License-Identifier: Apache-2.0
"""Counters, scheduler and client_state of an Engine in checkpoints."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import torch
import torch.utils.dlpack

from .._checkpoints import OWN_NAMES, Loaded
from ..errors import CorruptCheckpoint, InvalidArgument

Counts = dict[str, int]
"""Counters of an engine by attribute name."""
_COUNTERS = OWN_NAMES + "counters"
_SCHEDULER = OWN_NAMES + "lr_scheduler"
NAMES = ("global_steps", "micro_steps", "global_samples")
_MOST = 1 << 53


def pack(counts: Counts, scheduler: Any) -> dict[str, Any]:
    """Returns the counts and the scheduler's state in their saved form. Ranks that have
    made the same calls get equal results. Local.
    """
    values: dict[str, Any] = {_COUNTERS: json.dumps(counts)}
    if hasattr(scheduler, "state_dict"):
        file = io.BytesIO()
        torch.save(scheduler.state_dict(), file)
        values[_SCHEDULER] = torch.frombuffer(
            bytearray(file.getvalue()), dtype=torch.uint8
        )
    return values


def counts_in(found: Loaded, samples_per_step: int) -> Counts:
    """Returns the saved counts. Local. If another program wrote the checkpoint, which
    then stores no counts, assumes one backward per step. Raises CorruptCheckpoint
    unless the counts are whole numbers in 0 .. 2^53.
    """
    text = found.common.get(_COUNTERS)
    if text is None:
        samples = found.step * samples_per_step
        return dict(zip(NAMES, (found.step, found.step, samples), strict=True))
    try:
        saved = json.loads(text)
        counts = {name: saved[name] for name in NAMES if name in dict(saved)}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptCheckpoint(f"{_COUNTERS}: {error}") from None
    for name, value in counts.items():
        if type(value) is not int or not 0 <= value <= _MOST:
            raise CorruptCheckpoint(
                f"{_COUNTERS}: {name} must be a whole number in 0 .. 2^53, got "
                f"{value!r:.60}"
            )
    return counts


def scheduler_state_in(found: Loaded) -> dict[str, Any] | None:
    """Returns the saved state of a scheduler. Local. Raises CorruptCheckpoint unless
    the state contains only numbers and text.
    """
    saved = found.common.get(_SCHEDULER)
    if saved is None:
        return None
    try:
        data = bytes(torch.utils.dlpack.from_dlpack(saved).tolist())
        state = torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:  # noqa: BLE001  a damaged pickle raises anything
        raise CorruptCheckpoint(
            f"the scheduler's state cannot be read without running code: {error}"
        ) from None
    if not isinstance(state, dict):
        raise CorruptCheckpoint(
            f"the scheduler's state must be a dict, got {type(state).__name__}"
        )
    return state


CLIENT_STATE = OWN_NAMES + "client_state"

# Keys that DeepSpeed reserves in its checkpoints.
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
    """Returns the client_state as JSON. Raises KeyError for a reserved name, and
    InvalidArgument for a value that JSON cannot hold.
    """
    taken = sorted(name for name in client_state if name in RESERVED)
    if taken:
        raise KeyError(
            f"client_state: {', '.join(taken)}: reserved for the engine's own state"
        )
    _require_plain(client_state, "client_state")
    return json.dumps(client_state)


def from_text(report: Loaded) -> dict[str, Any]:
    """Returns the saved client_state, which is empty if none was saved. Raises
    CorruptCheckpoint if it is no JSON.
    """
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

# SPDX-License-Identifier: Apache-2.0
"""What an Engine counts beside its optimizer, and its scheduler's state, in checkpoints."""

from __future__ import annotations

import io
import json
import pickle
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.dlpack

from .. import _core
from ..checkpoint import OWN_NAMES
from ..errors import CorruptCheckpoint

if TYPE_CHECKING:
    from ._base import EngineBase

_COUNTERS = OWN_NAMES + "counters"
_SCHEDULER = OWN_NAMES + "lr_scheduler"
_NAMES = ("global_steps", "micro_steps", "global_samples")


def pack(engine: EngineBase) -> dict[str, Any]:
    """Local: equal on all ranks where they have made the same calls."""
    values: dict[str, Any] = {
        _COUNTERS: json.dumps({name: getattr(engine, name) for name in _NAMES})
    }
    if engine._own_scheduler and hasattr(engine.lr_scheduler, "state_dict"):
        file = io.BytesIO()
        torch.save(engine.lr_scheduler.state_dict(), file)
        values[_SCHEDULER] = torch.frombuffer(
            bytearray(file.getvalue()), dtype=torch.uint8
        )
    return values


def restore(engine: EngineBase, report: _core.LoadReport, with_scheduler: bool) -> None:
    """Local: after the parameters and the optimizer. A checkpoint of another program has
    no counters: then steps count as backwards.

    Raises CorruptCheckpoint for a scheduler's state that has more than numbers and text.
    """
    text = report.common.get(_COUNTERS)
    if text is not None:
        for name, value in json.loads(text).items():
            if name in _NAMES:
                setattr(engine, name, int(value))
    else:
        engine.global_steps = engine.micro_steps = report.step
        engine.global_samples = report.step * engine._batch[0]
    saved = report.common.get(_SCHEDULER)
    if saved is None or not with_scheduler or not engine._own_scheduler:
        return
    file = io.BytesIO(bytes(torch.utils.dlpack.from_dlpack(saved).tolist()))
    try:
        state = torch.load(file, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise CorruptCheckpoint(
            f"the scheduler's state cannot be read without running code: {error}"
        ) from None
    engine.lr_scheduler.load_state_dict(state)

# SPDX-License-Identifier: Apache-2.0
"""Record of whether an optimizer or a hook averages a parameter's gradients."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch.utils.weak import WeakIdKeyDictionary

from .errors import FailedPrecondition

Kind = Literal["optimizer", "hook"]
_TEXTS = {
    "optimizer": "a Thinwire optimizer has these parameters, and averages gradients "
    "itself: ddp_hook() and fsdp_hook() are for torch's optimizers; call "
    "thinwire.local_gradients(ddp) instead",
    "hook": "thinwire.fsdp_hook() or ddp_hook() averages these parameters: use one of "
    "torch's optimizers with it, or no hook with this one",
}
_kinds: Any = WeakIdKeyDictionary()


def require_free(parameters: Iterable[torch.Tensor], kind: Kind) -> None:
    """Raises FailedPrecondition if the other kind averages one of the parameters. Local."""
    for parameter in parameters:
        other, closer = _kinds.get(parameter, (kind, None))
        if other != kind and closer.alive:
            raise FailedPrecondition(_TEXTS[other])


def note(
    parameters: Iterable[torch.Tensor], kind: Kind, closer: weakref.finalize[..., Any]
) -> None:
    """Notes that `kind` averages the parameters until `closer` has run. Local."""
    for parameter in parameters:
        _kinds[parameter] = (kind, closer)

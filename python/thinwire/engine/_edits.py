# SPDX-License-Identifier: Apache-2.0
"""Decides which engines would undo what the program writes into parameters."""

from __future__ import annotations

from .. import _core


def may_be_behind(config: _core.Config, phase: str) -> bool:
    """Returns whether ranks may differ, by local steps, after an optimizer was loaded."""
    has_local_steps = (
        isinstance(config.optimizer, _core.ZeroOneAdamOptions)
        or config.outer.sync_every > 0
    )
    return has_local_steps and phase != "exact"


def undoes_edits(config: _core.Config) -> bool:
    """Returns whether parameters are computed from other memory: masters, or those of
    0/1 Adam's last exchange.
    """
    return (
        config.precision.dtype != _core.DType.float32
        or config.zero.stage > 0
        or isinstance(config.optimizer, _core.ZeroOneAdamOptions)
    )

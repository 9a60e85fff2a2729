# SPDX-License-Identifier: Apache-2.0
"""Decides which engines would undo what the program writes into parameters."""

from __future__ import annotations

from .. import _core


def may_be_behind(config: _core.Config, phase: str) -> bool:
    """Returns whether ranks may differ, by local steps, after an optimizer was loaded."""
    return _has_local_steps(config) and phase != "exact"


def undoes_edits(config: _core.Config) -> bool:
    """Returns whether parameters are computed from other memory: masters, or those of
    the last exchange of 0/1 Adam or of an outer loop.
    """
    return (
        config.precision.dtype != _core.DType.float32
        or config.zero.stage > 0
        or _has_local_steps(config)
    )


def _has_local_steps(config: _core.Config) -> bool:
    return (
        isinstance(config.optimizer, _core.ZeroOneAdamOptions)
        or config.outer.sync_every > 0
    )

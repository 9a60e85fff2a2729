# SPDX-License-Identifier: Apache-2.0
"""What one step did."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from . import _core


@dataclass(frozen=True)
class StepReport:
    """What one step did; the same on all ranks, except for the times."""

    applied: bool
    """False: a gradient was not finite on some rank, and nothing has changed on any."""
    nonfinite_rank: int
    """The lowest rank whose gradient was not finite, where that is known; -1."""
    phase: str
    """How ranks averaged: "exact", "compressed", or "local" for not at all."""
    grad_norm: float
    """L2 norm of the averaged gradient before clipping."""
    grad_norm_is_estimate: bool
    """In compressed steps, whose averaged gradient nobody has."""
    clip_factor: float
    """What the gradient was multiplied by to keep to max_grad_norm; 1: nothing."""
    loss_scale: float
    """What the gradient was divided by."""
    masked: int
    """Elements that take no part: masked, or without any gradient so far."""
    heavy: int
    """Elements so far above their block that they travel scaled down."""
    revived: int
    """Elements whose first gradient came in this step."""
    bytes_sent: int
    """By this rank to others."""
    collectives: int
    messages: int
    """From this rank to others."""
    bytes_between_hosts: int
    """Of bytes_sent, what went to other hosts."""
    residuals_cleared: bool
    """ZeRO in few bits: this step was skipped, and residuals became 0."""
    seconds: float
    """Of the whole step."""
    exchange_seconds: float
    """Of it, spent waiting for other ranks."""
    comm_busy_seconds: float
    """In which some exchange was under way, beside backward too."""
    gradients_equal: bool
    """All ranks had the same gradient, bit for bit: somebody has averaged it before."""

    @classmethod
    def of(cls, native: _core.StepReport) -> Self:
        """Takes the fields of the native report."""
        return cls(**{field.name: getattr(native, field.name) for field in fields(cls)})

    @classmethod
    def skipped(cls, phase: str, loss_scale: float) -> Self:
        """Of a step that was left out without an exchange."""
        values: dict[str, Any] = dict.fromkeys((f.name for f in fields(cls)), 0)
        values |= {
            "applied": False,
            "nonfinite_rank": -1,
            "phase": phase,
            "clip_factor": 1.0,
        }
        values |= {"loss_scale": loss_scale, "grad_norm_is_estimate": False}
        flags = dict.fromkeys(("gradients_equal", "residuals_cleared"), False)
        return cls(**values | flags)

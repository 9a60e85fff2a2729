# SPDX-License-Identifier: Apache-2.0
"""Results of one step."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from . import _core


@dataclass(frozen=True)
class StepReport:
    """Results of one step. The same on all ranks, except for times and counts of bytes and
    messages. Norms are a worker's own in local steps, and in an outer loop also in syncs.
    """

    applied: bool
    """Whether the step was applied. If not, a gradient on some rank was not finite, and
    no parameter has changed on any rank.
    """
    nonfinite_rank: int
    """The lowest rank with a non-finite gradient, or -1 if there is none or it is
    unknown.
    """
    phase: str
    """Kind of the ranks' averages: "exact", "compressed", or "local" for none."""
    grad_norm: float
    """L2 norm of the averaged gradient before clipping."""
    grad_norm_is_estimate: bool
    """Whether grad_norm is an estimate: in compressed steps no rank has the averaged
    gradient.
    """
    clip_factor: float
    """Factor by which clipping to max_grad_norm multiplied the gradient; 1 for none."""
    drift: float
    """Norm of the ranks' mean change over the RMS norm of their own changes, in a sync of
    an outer loop; otherwise 0. It is 1 if ranks moved alike, and 1 / sqrt(workers) if
    all they did was noise. Workers are hosts, or ranks if flat.
    """
    rho: float
    """Cosine of the ranks' mean change and the outer momentum before it, in a sync of an
    outer loop; otherwise 0. With momentum 0 that is the previous mean change.
    """
    loss_scale: float
    """Divisor of the gradient."""
    bits: int
    """Bits per element in which an exact step averaged gradients; 0 for exactly."""
    masked: int
    """Elements that compression leaves out: masked, or without any gradient so far."""
    heavy: int
    """Outliers: elements so far above their block that they are sent scaled down."""
    revived: int
    """Inactive elements that this step activated with their first gradient."""
    bytes_sent: int
    """Bytes that this rank sent to others."""
    collectives: int
    messages: int
    """Messages that this rank sent to others."""
    bytes_between_hosts: int
    """Part of bytes_sent that went to other hosts."""
    residuals_cleared: bool
    """Whether this step was skipped and set residuals to 0. Only low-bit ZeRO and
    exact steps with warmup_bits do so.
    """
    seconds: float
    """Time of the whole step."""
    exchange_seconds: float
    """Time waiting for other ranks."""
    comm_busy_seconds: float
    """Time with an exchange in flight, also during backward."""
    gradients_equal: bool
    """Whether all ranks had bitwise the same gradient. Then something averaged it
    before.
    """

    @classmethod
    def of(cls, native: _core.StepReport) -> Self:
        """Takes the fields of the native report."""
        return cls(**{field.name: getattr(native, field.name) for field in fields(cls)})

    @classmethod
    def skipped(cls, phase: str, loss_scale: float) -> Self:
        """Returns the report of a step that was left out without an exchange."""
        zeros = {"bool": False, "str": ""}
        values: dict[str, Any] = {
            f.name: zeros.get(str(f.type), 0) for f in fields(cls)
        }
        values |= {"nonfinite_rank": -1, "phase": phase, "clip_factor": 1.0}
        return cls(**values | {"loss_scale": loss_scale})

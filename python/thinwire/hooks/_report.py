# SPDX-License-Identifier: Apache-2.0
"""Results of one backward."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HookReport:
    """Results of one backward in which ranks averaged. All ranks have the same is_exact,
    is_finite and loss_scale, and the rest is this rank's.
    """

    backwards: int
    """Backwards of the hook so far, this one included."""
    is_exact: bool
    """Whether DDP's own rule averaged, for exact_steps."""
    is_finite: bool
    """Whether all low-bit averages were finite. Others are NaN on all ranks."""
    loss_scale: float
    """Divisor of the gradients while they travelled."""
    bytes_sent: int
    """Bytes of averages that this rank sent to others; 0 if is_exact, because DDP's
    group sends then.
    """
    wait_seconds: float
    """Time waiting for other ranks, also during backward."""
    residual_ratio: float | None
    """Norm of this rank's residuals over the norm of the average; None if there is no
    average but 0.
    """

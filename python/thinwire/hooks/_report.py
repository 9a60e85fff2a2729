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
    """Whether DDP averaged exactly, as it does without a hook, because this was one of the
    first exact_steps backwards.
    """
    is_finite: bool
    """Whether all low-bit averages were finite. An average that was not is NaN on all ranks."""
    loss_scale: float
    """Loss scale of this backward. Gradients were divided by it for the exchange, and
    averages multiplied by it.
    """
    bytes_sent: int
    """Bytes of averages that this rank sent to others; 0 if is_exact, because DDP's
    group sends then.
    """
    wait_seconds: float
    """Time waiting for other ranks, also during backward."""
    residual_ratio: float | None
    """Norm of this rank's residuals over the norm of the low-bit average. It is None if there
    was no such average, or if its norm was 0 or NaN.
    """

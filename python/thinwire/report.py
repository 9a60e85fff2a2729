# SPDX-License-Identifier: Apache-2.0
"""Results of one step, and of one backward."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from . import _core


@dataclass(frozen=True)
class StepReport:
    """Results of one step, equal on all ranks except for times and counts of bytes and
    messages. In local steps, and in syncs of an outer loop, norms belong to one worker.
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
    """Factor by which clipping to max_grad_norm multiplied the gradient; 1 without
    clipping.
    """
    drift: float
    """Norm of the ranks' mean change over the RMS norm of their own changes, in a sync
    of an outer loop; otherwise 0. The ratio is 1 if ranks moved alike, and 1 /
    sqrt(workers) if their changes were independent noise. Workers are hosts, or ranks
    if flat.
    """
    rho: float
    """Cosine of the ranks' mean change and the outer momentum before it, in a sync of
    an outer loop; otherwise 0. With momentum 0, the previous mean change takes the
    place of the outer momentum.
    """
    loss_scale: float
    """Divisor of the gradient."""
    bits: int
    """Bits per element in which an exact step averaged gradients; otherwise 0."""
    low_rank: int
    """The keyword low_rank, if this step averaged gradients as products; otherwise 0."""
    masked: int
    """Elements that compression leaves out: masked, or without any gradient so far."""
    heavy: int
    """Outliers: elements that are sent scaled down, because they far exceed their block."""
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
    """Whether this step was skipped and set residuals to 0. Only low-bit ZeRO and exact
    steps with warmup_bits can set this.
    """
    seconds: float
    """Time of the whole step."""
    exchange_seconds: float
    """Time waiting for other ranks."""
    comm_busy_seconds: float
    """Time with an exchange in flight, also during backward."""
    gradients_equal: bool
    """Whether all ranks had bitwise the same gradient norm, in one of the first two
    steps that compare it. In this case gradients were probably averaged before the
    step.
    """

    @classmethod
    def of(cls, native: _core.StepReport) -> Self:
        """Converts the native report."""
        return cls(**{field.name: getattr(native, field.name) for field in fields(cls)})

    @classmethod
    def skipped(cls, phase: str, loss_scale: float) -> Self:
        """Returns the report of a step that was skipped without an exchange."""
        zeros = {"bool": False, "str": ""}
        values: dict[str, Any] = {
            f.name: zeros.get(str(f.type), 0) for f in fields(cls)
        }
        values |= {"nonfinite_rank": -1, "phase": phase, "clip_factor": 1.0}
        return cls(**values | {"loss_scale": loss_scale})


@dataclass(frozen=True)
class EngineReport(StepReport):
    """Results of Engine.step(): the optimizer's report, and data of the engine."""

    at_boundary: bool
    """Whether the step is at a boundary. If not, the window of accumulation continues,
    and nothing was updated.
    """
    steps: int
    """Applied steps so far, including this one."""
    learning_rate: float
    """Rate of group 0 in this step."""
    backward_seconds: float
    """Time of computing gradients since the window's first backward."""
    late_elements: int
    """Elements whose average began only after backward."""
    waited_for: str
    """Parameter that delayed these elements; empty if there is none."""


@dataclass(frozen=True)
class HookReport:
    """Results of one backward in which ranks averaged. is_exact, is_finite and
    loss_scale are equal on all ranks, while the other values belong to this rank.
    """

    backwards: int
    """Backwards of the hook so far, this one included."""
    is_exact: bool
    """Whether DDP averaged exactly, as it does without a hook, because this was one of the
    first exact_steps backwards.
    """
    is_finite: bool
    """Whether all low-bit averages were finite. A non-finite average is NaN on all ranks."""
    loss_scale: float
    """Loss scale of this backward. Gradients were divided by it for the exchange, and
    averages multiplied by it.
    """
    bytes_sent: int
    """Bytes of averages that this rank sent to others; 0 if is_exact, because DDP's
    group then sends the data.
    """
    wait_seconds: float
    """Time waiting for other ranks, also during backward."""
    residual_ratio: float | None
    """Norm of this rank's residuals over the norm of the low-bit average. The ratio is
    None if there was no such average, or if its norm was 0 or NaN.
    """

# SPDX-License-Identifier: Apache-2.0
"""What the parts of an optimizer on a device share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .adam import AdamNumbers, Coefficients
from .exchange import Exchange
from .rows import Rows
from .settings import Settings


@dataclass
class Report:
    """What one step did: the fields of the C++ StepReport."""

    phase: str
    loss_scale: float
    applied: bool = True
    nonfinite_rank: int = -1
    grad_norm: float = 0.0
    grad_norm_is_estimate: bool = False
    clip_factor: float = 1.0
    masked: int = 0
    heavy: int = 0
    revived: int = 0
    bytes_sent: int = 0
    collectives: int = 0
    messages: int = 0
    bytes_between_hosts: int = 0
    """All of bytes_sent: every rank counts as a host of its own."""
    residuals_cleared: bool = False
    seconds: float = 0.0
    exchange_seconds: float = 0.0
    comm_busy_seconds: float = 0.0
    """What was waited for: nobody knows when a device's exchange ended before."""
    gradients_equal: bool = False


@dataclass
class StepInput:
    """Arrays of a step as rows, [rows, 1024]; gradients are overwritten."""

    params: torch.Tensor
    grads: torch.Tensor
    loss_scale: float
    report: Report
    is_scaled: bool = False
    """By a loss scale that falls with overflows: a gradient that is not finite skips the step on
    all ranks, whatever it exchanges."""
    is_last_chance: bool = False
    """The rank of such a gradient has to be found."""


class Model:
    """Layout, options, moments and the group of ranks.

    Attributes:
        exp_avg, exp_avg_sq: [rows, 1024] fp32; the latter None once it is given up.
        ordered: Sums and exact averages have the C++ library's order, and so its bits.
    """

    def __init__(
        self, rows: Rows, settings: Settings, exchange: Exchange, ordered: bool
    ) -> None:
        self.rows = rows
        self.settings = settings
        self.exchange = exchange
        self.ordered = ordered
        own = settings.own
        self.numbers = AdamNumbers(
            settings.groups,
            rows.group,
            own.bias_correction,
            own.epsilon_inside_sqrt,
            settings.decoupled_decay,
        )
        self.exp_avg = rows.zeros()
        self.exp_avg_sq: torch.Tensor | None = rows.zeros()
        self.buckets = rows.buckets(settings.bucket_elements)
        self.pieces = rows.pieces(settings.bucket_elements)

    @property
    def world(self) -> int:
        return self.exchange.size

    @property
    def compresses(self) -> bool:
        """A group of one sends nothing, so it compresses nothing."""
        return self.world > 1

    @property
    def variance(self) -> torch.Tensor:
        assert self.exp_avg_sq is not None
        return self.exp_avg_sq

    def coefficients(self, step: int, grad_scale: float) -> Coefficients:
        return self.numbers.coefficients(step, grad_scale)

    def sum_divisor(self, grads: torch.Tensor) -> int:
        """What Exchange.sum_() left to divide by."""
        return self.world if grads.dtype == torch.float32 else 1

    def outlier_bounds(self) -> list[float]:
        """1 / sqrt(1 - beta2) per group: what one gradient alone is in Adam, in denominators."""
        return [1 / math.sqrt(1 - group.beta2) for group in self.settings.groups]

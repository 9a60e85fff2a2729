# SPDX-License-Identifier: Apache-2.0
"""The end of the warm-up stage: docs/algorithms/common.md, "Automatic freeze" and
"Denominator floor"."""

from __future__ import annotations

import math

import torch

from .adam import denominator
from .denominators import Denominators
from .model import Model
from .participation import Participation
from .settings import AUTO_FREEZE
from .sums import total_magnitudes


class Freeze:
    """When the variance is frozen, and how.

    Attributes:
        at: The last exact step; 0 before it.
        norms: Of the automatic freeze: the variance's L1 norm after every step.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.at = 0
        self.norms: list[float] = []
        own = model.settings.own
        self._step = own.planned_freeze_step()
        total = own.total_steps
        fifth = 100_000 if total is None else -(-total // 5)
        tenth = 0 if total is None else -(-total // 10)
        self._earliest = max(
            own.lr_warmup_steps or 0, tenth, min(own.min_freeze_step, fifth)
        )
        latest = fifth if own.max_freeze_step is None else own.max_freeze_step
        self._latest = max(latest, self._earliest)
        self._ratio = own.freeze_ratio

    @property
    def is_frozen(self) -> bool:
        return self.at > 0

    @property
    def phase(self) -> str:
        return "compressed" if self.is_frozen else "exact"

    def ends_at(self, step: int) -> bool:
        """After every exact step: whether it was the last one."""
        if self._step != AUTO_FREEZE:
            return bool(step >= self._step)
        model = self._model
        dense = model.rows.dense(model.variance)
        norm = 0.0
        for offset, size, group in model.rows.group_ranges():
            own = dense[offset : offset + size]
            total = total_magnitudes(own) if model.ordered else own.double().sum()
            norm += total.item() / (
                1 - math.pow(model.settings.groups[group].beta2, step)
            )
        self.norms.append(norm)
        seen = len(self.norms)
        window = max(50, seen // 2)
        if seen >= self._latest:
            return True
        if seen < self._earliest or seen <= window:
            return False
        before = self.norms[seen - window - 1]
        return (
            norm > 0 and before > 0 and min(norm / before, before / norm) >= self._ratio
        )

    def freeze(
        self, step: int, keeps_variance: bool, who: Participation, to: Denominators
    ) -> None:
        """Forms the denominators; the variance goes, or stays beside them."""
        model = self._model
        c = model.coefficients(step, 1.0)
        compressed = slice(0, model.rows.compressed)
        v = model.variance[compressed]
        to.fit(denominator(v, c.of(compressed)), who.by_variance(v))
        self.at = step
        if not keeps_variance:
            model.exp_avg_sq = None
            return
        flat = v.view(-1)
        flat[to.heavy] = to.factors * (to.factors * flat[to.heavy])
        v[~torch.isfinite(v)] = 0

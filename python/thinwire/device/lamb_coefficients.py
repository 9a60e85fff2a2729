# SPDX-License-Identifier: Apache-2.0
"""1-bit LAMB's numbers per parameter: arXiv:2104.06069, docs/algorithms/onebit-lamb.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from .rows import Rows


class LambCoefficients:
    """Per parameter, in double: averages of trust ratios, and the factor that adapts them."""

    def __init__(self, own: Any, count: int) -> None:
        self.last = [0.0] * count
        self.averages = [0.0] * count
        self.counts = [0] * count
        self.last_factors = [1.0] * count
        self._own = own

    def average(self, i: int, ratio: float) -> None:
        beta = self._own.coeff_beta
        self.averages[i] = beta * self.averages[i] + (1 - beta) * ratio
        self.counts[i] += 1

    def corrected_average(self, i: int) -> float:
        if self.counts[i] == 0:
            return 1.0
        return float(
            self.averages[i] / (1 - math.pow(self._own.coeff_beta, self.counts[i]))
        )

    def factor(self, i: int, drift: float, decayed: float, has_decay: bool) -> float:
        own = self._own
        factor = drift * decayed + (1.0 - decayed) if has_decay else drift
        factor = max(min(factor, own.factor_max), own.factor_min)
        last = self.last_factors[i]
        factor = min(factor, last * (1.0 + own.factor_threshold))
        factor = max(factor, last * (1.0 - own.factor_threshold))
        self.last_factors[i] = factor
        return float(factor)


@dataclass
class FactorSums:
    """Per compressed row: squares of the update without decay and with it, fp64, and the largest
    frozen over fresh denominator, fp32."""

    plain: torch.Tensor
    update: torch.Tensor
    ratio: torch.Tensor

    def of_parameters(
        self, rows: Rows, ordered: bool
    ) -> list[tuple[float, float, float]]:
        """Added up, row after row where the order counts."""
        owner = rows.parameter[: rows.compressed]
        count = len(rows.sizes) + 1
        ratio = torch.zeros(count, device=rows.device).scatter_reduce(
            0, owner, self.ratio, "amax"
        )
        sums = []
        for values in (self.plain, self.update):
            if ordered:
                totals = [0.0] * count
                for k, value in zip(owner.tolist(), values.tolist(), strict=True):
                    totals[k] += value
                sums.append(totals)
            else:
                total = torch.zeros(count, dtype=torch.float64, device=rows.device)
                sums.append(total.index_add_(0, owner, values).tolist())
        return list(zip(*sums, ratio.tolist(), strict=True))[:-1]


def common_size_scales(rms: list[float], groups: list[int]) -> list[float]:
    """The mean RMS of all momenta that are not 0 over each one's own, added up by group."""
    sums = [0.0] * (max(groups, default=0) + 1)
    for own, group in zip(rms, groups, strict=True):
        sums[group] += own
    counted = float(sum(own > 0 for own in rms))
    total = 0.0
    for of_group in sums:
        total += of_group
    return [total / counted / own if own > 0 else 1.0 for own in rms]

# SPDX-License-Identifier: Apache-2.0
"""LAMB's trust ratios on rows. Source: You et al., arXiv:1904.00962, Algorithm 2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from .adam import (
    AdamNumbers,
    denominator,
    moved,
    next_momentum,
    next_variance,
    scaled_gradient,
    update,
)
from .rows import ROW, Rows
from .settings import Group
from .sums import chunks_of, squares, total_of_chunks


@dataclass(frozen=True)
class TrustRatio:
    """||p|| / ||u||, clamped; 1 and not computed where a norm is 0."""

    value: float = 1.0
    computed: bool = False


def trust_ratio(params: float, update_norm: float, group: Group) -> TrustRatio:
    if params == 0 or update_norm == 0:
        return TrustRatio()
    ratio = params / update_norm
    return TrustRatio(max(group.min_coeff, min(ratio, group.max_coeff)), True)


def learning_rates(
    rows: Rows, groups: Sequence[Group], factors: Sequence[float]
) -> torch.Tensor:
    """A column: minus each parameter's learning rate times its factor, in double, rounded
    once."""
    rates = [
        -groups[group].learning_rate * factor
        for group, factor in zip(rows.groups, factors, strict=True)
    ]
    table = torch.tensor([*rates, 0.0], dtype=torch.float64, device=rows.device).float()
    return table[rows.parameter][:, None]


def squares_of_parameters(
    rows: Rows, values: torch.Tensor, ordered: bool
) -> list[float]:
    """Sums of squares per parameter: in the kernels' order cut where chunks of the dense array
    end, else in the device's."""
    if not ordered:
        sums = torch.zeros(len(rows.sizes) + 1, dtype=torch.float64, device=rows.device)
        sums.index_add_(0, rows.parameter, squares(values, False))
        return sums[:-1].tolist()
    flat = values.reshape(-1)
    found = []
    for start, size, dense in zip(
        rows.offsets, rows.sizes, rows.dense_offsets, strict=True
    ):
        cells = chunks_of(flat[start : start + size], ROW - dense % ROW)
        found.append(total_of_chunks(squares(cells, True), dense // ROW).item())
    return found


def lamb_step(
    rows: Rows,
    numbers: AdamNumbers,
    arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    step: tuple[int, float],
    ordered: bool,
) -> list[TrustRatio]:
    """Takes a step in place and returns every parameter's ratio.

    Args:
        arrays: Parameters, first and second moment, and gradients, [rows, 1024].
        step: Its number, and what gradients are multiplied by.
    """
    p, m, v, g = arrays
    c = numbers.coefficients(*step)
    own = scaled_gradient(g, p, c)
    m.copy_(next_momentum(m, own, c))
    v.copy_(next_variance(v, own, c))
    d = denominator(v, c)
    ratios = [
        trust_ratio(math.sqrt(params), math.sqrt(updates), numbers.groups[group])
        for params, updates, group in zip(
            squares_of_parameters(rows, p, ordered),
            squares_of_parameters(rows, update(p, m, d, c), ordered),
            rows.groups,
            strict=True,
        )
    ]
    rates = learning_rates(rows, numbers.groups, [ratio.value for ratio in ratios])
    p.copy_(moved(p, m, d, replace(c, minus_learning_rate=rates)))
    return ratios

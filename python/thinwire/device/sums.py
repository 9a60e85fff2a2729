# SPDX-License-Identifier: Apache-2.0
"""Sums in double over rows, in the order of the C++ kernels or in the device's own.

The order is that of include/thinwire/kernels/norm.h: element i of a chunk of 1024 goes to
accumulator i mod 16, accumulators are added as a tree; chunks likewise in groups of 1024;
groups one after the other.
"""

from __future__ import annotations

import torch

from .rows import ROW

_LANES = 16


def root(x: torch.Tensor) -> torch.Tensor:
    """Correctly rounded fp32 square roots. On a CPU torch's own are 1 ulp off for a sixth of
    all values, so they go through double; other devices round as IEEE 754 says."""
    return x.double().sqrt().float() if x.device.type == "cpu" else x.sqrt()


def row_sums(terms: torch.Tensor, ordered: bool) -> torch.Tensor:
    """Sums of fp64 `terms` [rows, 1024] over each row, fp64."""
    if not ordered:
        return terms.sum(1)
    lanes = terms.view(terms.shape[0], ROW // _LANES, _LANES)
    if terms.device.type == "cpu":
        total = lanes.cumsum(1)[:, -1]  # one element after the other, in one call
    else:
        total = torch.zeros_like(lanes[:, 0])
        for k in range(ROW // _LANES):
            total = total + lanes[:, k]
    half = _LANES // 2
    while half:
        total = total[:, :half] + total[:, half : 2 * half]
        half //= 2
    return total[:, 0]


def squares(values: torch.Tensor, ordered: bool) -> torch.Tensor:
    """Sums of squares over each row; squares of floats are exact in double."""
    wide = values.double()
    return row_sums(wide * wide, ordered)


def magnitudes(values: torch.Tensor, ordered: bool) -> torch.Tensor:
    """Sums of absolute values over each row."""
    return row_sums(values.double().abs(), ordered)


def chunks_of(dense: torch.Tensor, first: int = ROW) -> torch.Tensor:
    """A dense array as rows padded with 0, the first of which has `first` elements."""
    head, tail = dense[:first], dense[first:]
    rows = torch.zeros(
        1 + -(-tail.numel() // ROW), ROW, dtype=dense.dtype, device=dense.device
    )
    rows[0, : head.numel()] = head
    rows.view(-1)[ROW : ROW + tail.numel()] = tail
    return rows


def total_of_chunks(sums: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Chunks' sums added in the kernels' order, a tensor without dimensions; they are chunks
    `first`, `first` + 1, ... of the grid."""
    before = first % ROW
    length = -(-(before + sums.numel()) // ROW) * ROW
    padded = torch.zeros(max(length, ROW), dtype=torch.float64, device=sums.device)
    padded[before : before + sums.numel()] = sums
    total = torch.zeros((), dtype=torch.float64, device=sums.device)
    for group in row_sums(padded.view(-1, ROW), True):
        total = total + group
    return total


def total_squares(dense: torch.Tensor) -> torch.Tensor:
    """kernels::sum_of_squares of a dense array."""
    return total_of_chunks(squares(chunks_of(dense), True))


def total_magnitudes(dense: torch.Tensor) -> torch.Tensor:
    """The sum of absolute values of a dense array, in the kernels' order."""
    return total_of_chunks(magnitudes(chunks_of(dense), True))

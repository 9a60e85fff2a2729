# SPDX-License-Identifier: Apache-2.0
"""The 4-bit and 8-bit codec in operations of torch, which run on every device.

Values are matrices: a row is a block of at most 1024 elements. A row of records
contains the bytes of the C++ codec: the step in fp32, then the codes in words of 32
bits. Every operation rounds once, so equal values have the same bits on all devices.
"""

from __future__ import annotations

import torch

BLOCK = 1024
_STEP_BYTES = 4


def record_bytes(elements: int, bits: int) -> int:
    """Returns the size of the record of a block."""
    return _STEP_BYTES + 4 * -(-elements * bits // 32)


def encode(c: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the records of blocks in uint8, and their rounding errors, which
    overwrite `c` (fp32).

    If an element is NaN or infinite, the step of its block is not finite, and all
    errors of the block are NaN.
    """
    levels = 2 ** (bits - 1) - 1
    largest = c.abs().amax(1, keepdim=True)
    # CUDA would multiply by the inverse of a Python number.
    step = largest / torch.full_like(largest, levels)
    # A step is 0 only if all elements of the block are so small that they round to 0.
    sums = (c / step.masked_fill(step == 0, 1)).round_().add_(levels)
    codes = sums.clamp_(0, 2 * levels).to(torch.uint8)
    codes.masked_fill_(~step.isfinite(), levels)
    # An integer 0 has no sign.
    error = c.sub_(sums.sub_(levels).mul_(step))
    columns = (record_bytes(c.shape[1], bits) - _STEP_BYTES) * 8 // bits
    if columns > c.shape[1]:
        codes = torch.nn.functional.pad(codes, (0, columns - c.shape[1]))
    if bits == 4:
        codes = codes[:, 0::2] | codes[:, 1::2] << 4
    return torch.cat([step.view(torch.uint8), codes], 1), error


def opened(
    records: torch.Tensor, elements: int, bits: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the integers of blocks, as fp32, and their steps as a column."""
    levels = 2 ** (bits - 1) - 1
    step = records[:, :_STEP_BYTES].contiguous().view(torch.float32)
    codes = records[:, _STEP_BYTES:]
    if bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], 2).flatten(1)
    return codes[:, :elements].float().sub_(levels), step


def decode(records: torch.Tensor, elements: int, bits: int) -> torch.Tensor:
    """Returns the decoded values of records, which are NaN if a step is not finite."""
    q, step = opened(records, elements, bits)
    return q.mul_(step)


def average(records: torch.Tensor, elements: int, bits: int) -> torch.Tensor:
    """Returns the means of blocks over ranks, which are the first dimension. Values are
    added in rank order.
    """
    total = None
    for of_rank in records:
        q, step = opened(of_rank, elements, bits)
        part = q.mul_(step * (1 / len(records)))
        # The sum begins with 0, which has no sign.
        total = part.add_(0.0) if total is None else total.add_(part)
    assert total is not None
    return total

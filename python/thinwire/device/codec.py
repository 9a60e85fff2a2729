# SPDX-License-Identifier: Apache-2.0
"""Rows to records and back: the error-compensated 1-bit compression of arXiv:2102.02888 and
the 4-bit one of the variance refresh, in torch operations.

A record of one bit per element has 132 bytes: the row's scale, fp32, and 1024 sign bits,
element i in bit i mod 8 of byte i / 8, 1 for +. One of four bits has 516: the step, and 1024
codes q + 7, the even element in the low half of a byte. Operations are those of
include/thinwire/kernels/sign_compress.h and quantize.h, in their order.
"""

from __future__ import annotations

import math

import torch

from .rows import ROW
from .sums import magnitudes, squares

_LEVELS = 7.0  # the largest code of four bits
SIGN_RECORD = 4 + ROW // 8
QUANTIZED_RECORD = 4 + ROW // 2


def scale_divisors(count: torch.Tensor, l1: bool) -> torch.Tensor:
    """What a row's sum is divided by, fp32: count for the L1 scale, else its root, of rows with
    `count` elements that take part."""
    table = [float(n) if l1 else math.sqrt(n) for n in range(ROW + 1)]
    return torch.tensor(table, device=count.device).float()[count]


def pack(bits: torch.Tensor) -> torch.Tensor:
    """[rows, 1024] bool to [rows, 128] uint8."""
    weights = 1 << torch.arange(8, dtype=torch.uint8, device=bits.device)
    bytes_ = bits.view(bits.shape[0], ROW // 8, 8).to(torch.uint8) * weights
    return bytes_.sum(2, dtype=torch.uint8)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """The reverse of pack()."""
    weights = 1 << torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, :, None] & weights) != 0).view(packed.shape[0], ROW)


def _with_scale(scale: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    return torch.cat([scale.view(-1, 1).view(torch.uint8), rest], 1)


def _scale_of(record: torch.Tensor) -> torch.Tensor:
    return record[:, :4].contiguous().view(torch.float32)


def encode(
    c: torch.Tensor,
    active: torch.Tensor,
    divisor: torch.Tensor,
    ordered: bool,
    l1: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What goes out, and what it leaves behind.

    Args:
        c: [rows, 1024] fp32, values plus residual; of any value where masked.
        active: [rows, 1024] bool, False where masked.
        divisor: [rows] fp32, scale_divisors() of the active elements.
        ordered: Sums in the kernels' order.
        l1: Scales of absolute values, not of squares.

    Returns:
        The residual [rows, 1024] fp32, 0 where masked, and records [rows, 132] uint8.
    """
    c = torch.where(active, c, 0.0)
    total = magnitudes(c, ordered).float() if l1 else squares(c, ordered).sqrt().float()
    scale = torch.where(divisor > 0, total / divisor, 0.0)
    plus = ~(c < 0)
    column = scale[:, None]
    error = torch.where(active, torch.where(plus, c - column, c + column), 0.0)
    return error, _with_scale(scale, pack(plus))


def decode(record: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Records to scales [rows, 1] and signs [rows, 1024], True for +."""
    return _scale_of(record), unpack(record[:, 4:])


def signed(
    scale: torch.Tensor, plus: torch.Tensor, active: torch.Tensor
) -> torch.Tensor:
    """+-scale, 0 where masked."""
    return torch.where(active, torch.where(plus, scale, -scale), 0.0)


def average(received: torch.Tensor, inverse_count: float) -> torch.Tensor:
    """The server's half: records [ranks, rows, 132] to their mean, added in rank order."""
    total = torch.zeros(received.shape[1], ROW, device=received.device)
    for record in received:
        scale, plus = decode(record)
        term = scale * inverse_count
        total = total + torch.where(plus, term, -term)
    return total


def quantize(
    c: torch.Tensor, active: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Four bits per element: what rounding takes, [rows, 1024] fp32, and records
    [rows, 516]."""
    c = torch.where(active, c, 0.0)
    levels = torch.full((), _LEVELS, device=c.device)
    step = (c.abs().amax(1) / levels)[:, None]
    q = (c / step).clamp(-_LEVELS, _LEVELS).round() + 0.0
    q = torch.where(step == 0, 0.0, q).nan_to_num(0.0)
    lost = torch.where(active, c - q * step, 0.0)
    codes = (q + _LEVELS).to(torch.uint8).view(-1, ROW // 2, 2)
    return lost, _with_scale(step, codes[:, :, 0] | (codes[:, :, 1] << 4))


def dequantize(record: torch.Tensor, factor: float | None = None) -> torch.Tensor:
    """q times its step; the step is multiplied by `factor` first."""
    step = _scale_of(record)
    if factor is not None:
        step = step * factor
    packed = record[:, 4:]
    codes = torch.stack([packed & 15, packed >> 4], 2).view(-1, ROW)
    return (codes.float() - _LEVELS) * step


def quantized_average(received: torch.Tensor, inverse_count: float) -> torch.Tensor:
    """Records [ranks, rows, 516] to their mean, added in rank order."""
    total = torch.zeros(received.shape[1], ROW, device=received.device)
    for record in received:
        total = total + dequantize(record, inverse_count)
    return total

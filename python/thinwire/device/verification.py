# SPDX-License-Identifier: Apache-2.0
"""Ranks compare their parameters: docs/algorithms/common.md, "Verification"."""

from __future__ import annotations

import torch

from ..errors import CommFailure, InvalidArgument
from .model import Model
from .rows import ROW


def checksums(model: Model, params: torch.Tensor) -> list[int]:
    """Of every parameter's bits, each weighted with its place: 64-bit sums that wrap."""
    rows = model.rows
    weights = torch.arange(ROW, device=rows.device) * 0x9E3779B1 + 0x85EBCA77
    of_rows = (params.view(torch.int32).long() * weights).sum(1)
    of_rows = of_rows * (2 * torch.arange(rows.count, device=rows.device) + 1)
    sums = torch.zeros(len(rows.sizes) + 1, dtype=torch.int64, device=rows.device)
    return [int(x) for x in sums.index_add_(0, rows.parameter, of_rows)[:-1].tolist()]


def verify_same(model: Model, params: torch.Tensor, schedule: str) -> None:
    """Collective. Raises CommFailure on all ranks, naming the first option, counter or
    parameter that differs."""
    text = schedule + model.settings.describe()
    for name, checksum in zip(model.rows.names, checksums(model, params), strict=True):
        text += f"parameter {name} checksum {checksum & 0xFFFFFFFFFFFFFFFF:016x}\n"
    try:
        model.exchange.require_same("parameters and schedule", text)
    except InvalidArgument as error:
        raise CommFailure(f"verification failed: {error}") from error

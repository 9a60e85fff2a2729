# SPDX-License-Identifier: Apache-2.0
"""The codec in operations of torch has the bytes, the errors and the means of the C++ one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from thinwire import _core
from thinwire.hooks import _codec

ROWS = 10
"""Blocks of each length; 1024 lengths and 2 numbers of bits make 20,480 cases."""
RANKS = 3
Numbers = torch.Generator


def ties(rows: int, n: int, random: Numbers) -> torch.Tensor:
    """Halves of a step that is a power of two: they round to even."""
    found = torch.randint(-13, 14, (rows, n), generator=random) / 2.0
    found[:, 0] = 7.0
    return found


KINDS: dict[str, Callable[[int, int, Numbers], torch.Tensor]] = {
    "normal": lambda rows, n, random: torch.randn(rows, n, generator=random),
    "spread": lambda rows, n, random: (
        torch.randn(rows, n, generator=random)
        * 2.0 ** torch.randint(-120, 120, (rows, n), generator=random)
    ),
    "denormal": lambda rows, n, random: (
        torch.randint(-200, 200, (rows, n), generator=random) * 2.0**-149
    ),
    "largest": lambda rows, n, random: (
        torch.rand(rows, n, generator=random).sub(0.5) * 6.8e38
    ),
    "zeros": lambda rows, n, random: (
        torch.randint(0, 2, (rows, n), generator=random) * -0.0
    ),
    "ties": ties,
}
BREAKS = [float("nan"), float("inf"), float("-inf")]


def blocks(n: int, random: Numbers) -> torch.Tensor:
    """ROWS blocks of n elements, the last three of which are not finite."""
    kinds = list(KINDS.values())
    rows = [kinds[k % len(kinds)](1, n, random) for k in range(ROWS)]
    for row, value in zip(rows[-3:], BREAKS, strict=True):
        at = torch.randint(0, n, (1,), generator=random)
        row[0, at] = value
    return torch.cat(rows)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether bits are equal; all NaN are."""
    if a.is_floating_point():
        both = a.isnan() & b.isnan()
        a, b = a.masked_fill(both, 0), b.masked_fill(both, 0)
        bits = torch.int32 if a.dtype == torch.float32 else torch.int16
        a, b = a.contiguous().view(bits), b.contiguous().view(bits)
    return torch.equal(a, b)


def bytes_and_step(records: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return records[:, 4:], records[:, :4].contiguous().view(torch.float32)


@pytest.mark.quick
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16])
def test_records_errors_and_means_are_those_of_the_native_codec(
    bits: int, narrow: torch.dtype
) -> None:
    """Residuals are in fp32 or bf16, values in all three dtypes."""
    random = torch.Generator().manual_seed(bits)
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    for n in range(1, _codec.BLOCK + 1):
        values = blocks(n, random).to(dtypes[n % 3])
        factor = (1.0, 1 / 65536, 1 / 3)[n // 3 % 3]
        residual = (1e-3 * torch.randn(ROWS, n, generator=random)).to(narrow)
        c = values.float().mul(factor).add_(residual)
        records, error = _codec.encode(c, bits)
        natives, errors = [], residual.clone()
        for row, kept in zip(values, errors, strict=True):
            made = _core.encode(row, kept, factor, bits)
            natives.append(torch.from_dlpack(made))
        native = torch.stack(natives)
        assert records.shape[1] == _codec.record_bytes(n, bits)
        assert all(map(same, bytes_and_step(records), bytes_and_step(native))), n
        assert same(error.to(narrow), errors), n
        of_ranks = torch.stack([records.roll(k, 0) for k in range(RANKS)])
        means = _codec.average(of_ranks, n, bits)
        for row in range(ROWS):
            want = torch.empty(n)
            _core.average(of_ranks[:, row].flatten(), want, bits)
            assert same(means[row], want), (n, row)
        alone = torch.empty(n)
        for row, decoded in zip(records, _codec.decode(records, n, bits), strict=True):
            _core.average(row.clone(), alone, bits)
            # A mean of one starts from 0, which turns -0 into 0.
            assert same(decoded + 0.0, alone), n


@pytest.mark.quick
def test_a_block_that_is_not_finite_is_nan_and_others_are_not() -> None:
    for bits in (4, 8):
        values = torch.ones(4, 8)
        values[1, 3], values[2, 0] = float("nan"), float("-inf")
        records, error = _codec.encode(values, bits)
        found = _codec.decode(records, 8, bits)
        assert error.isnan().any(1).tolist() == [False, True, True, False]
        assert found.isnan().all(1).tolist() == [False, True, True, False]
        assert torch.equal(found[0], torch.ones(8))

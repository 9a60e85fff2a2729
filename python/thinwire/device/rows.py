# SPDX-License-Identifier: Apache-2.0
"""How parameters lie in flat arrays on a device: in rows of 1024 elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

import torch

ROW = 1024
"""Elements of a row: a block of the C++ layout, which has a scale of its own."""

Spec = tuple[str, Sequence[int], int]
"""(name, shape, group) of a parameter."""


class Rows:
    """Parameters in rows: each begins with a row, the rest of its last row is 0.

    Parameters that are compressed come first, in their order, then those of `exact_groups`;
    both parts are padded with empty rows to a multiple of `world`, so that every rank serves as
    many rows as every other. Each part has rows even where it has no elements. Flat arrays of
    the optimizer have `size` elements, with parameter k at `offsets[k]`; "dense" arrays, of
    states, have `elements`, in the order of the parameters and without gaps.
    """

    def __init__(
        self,
        specs: Sequence[Spec],
        world: int,
        device: torch.device,
        exact_groups: Collection[int] = (),
    ) -> None:
        self.device = device
        self.world = world
        self.names = [name for name, _, _ in specs]
        self.sizes = [math.prod(shape) for _, shape, _ in specs]
        self.groups = [group for _, _, group in specs]
        self.is_exact = [group in exact_groups for group in self.groups]
        self.elements = sum(self.sizes)
        self.dense_offsets = list(itertools.accumulate(self.sizes, initial=0))[:-1]
        self.first_rows = [0] * len(specs)
        owners: list[int] = []
        counts: list[int] = []
        for part in (False, True):
            for k, size in enumerate(self.sizes):
                if self.is_exact[k] != part:
                    continue
                self.first_rows[k] = len(owners)
                whole, rest = divmod(size, ROW)
                own = [ROW] * whole + ([rest] if rest else [])
                counts += own
                owners += [k] * len(own)
            padding = -len(owners) % world
            if part is False and not owners:
                padding = world
            owners += [0] * padding
            counts += [0] * padding
            if part is False:
                self.compressed = len(owners)
        self.count = len(owners)
        self.offsets = [row * ROW for row in self.first_rows]
        self.size = self.count * ROW
        self.parameter = torch.tensor(owners, device=device)
        group_of = torch.tensor([*self.groups, 0], device=device)
        self.group = group_of[self.parameter]
        self.filled = torch.tensor(counts, device=device)
        self._places = torch.arange(ROW, device=device)

    def zeros(
        self, rows: int | None = None, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """[rows, 1024], default as many rows as there are."""
        shape = (self.count if rows is None else rows, ROW)
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def valid(self, rows: slice | torch.Tensor = slice(None)) -> torch.Tensor:
        """[rows, 1024] bool: which places hold an element of a parameter."""
        return self._places < self.filled[rows, None]

    def rows_of(self, parameter: int) -> slice:
        first = self.first_rows[parameter]
        return slice(first, first + -(-self.sizes[parameter] // ROW))

    def blocks(self) -> list[tuple[int, int, int]]:
        """(row, dense offset, elements) of every compressed row that has elements."""
        found = []
        for k, size in enumerate(self.sizes):
            if self.is_exact[k]:
                continue
            for at in range(0, size, ROW):
                row = self.first_rows[k] + at // ROW
                found.append((row, self.dense_offsets[k] + at, min(ROW, size - at)))
        return found

    def buckets(self, bucket_elements: int) -> list[slice]:
        """The compressed rows cut into pieces that travel together, each a multiple of the
        number of ranks."""
        step = max(bucket_elements // ROW // self.world, 1) * self.world
        return [
            slice(a, min(a + step, self.compressed))
            for a in range(0, self.compressed, step)
        ]

    def pieces(self, bucket_elements: int) -> list[slice]:
        """All rows, cut so that temporaries stay small."""
        step = max(bucket_elements // ROW, 1)
        return [slice(a, min(a + step, self.count)) for a in range(0, self.count, step)]

    def dense(
        self, values: torch.Tensor, compressed_only: bool = False
    ) -> torch.Tensor:
        """A copy without gaps of an array of rows, or of the compressed ones."""
        flat = values.reshape(-1)
        parts = [
            flat[start : start + size]
            for start, size, exact in zip(
                self.offsets, self.sizes, self.is_exact, strict=True
            )
            if not (exact and compressed_only)
        ]
        return torch.cat(parts) if parts else flat[:0].clone()

    def place(self, dense: torch.Tensor, compressed_only: bool = False) -> torch.Tensor:
        """The reverse of dense(): rows with 0 in the gaps."""
        rows = self.zeros(self.compressed if compressed_only else None, dense.dtype)
        flat = rows.view(-1)
        at = 0
        for start, size, exact in zip(
            self.offsets, self.sizes, self.is_exact, strict=True
        ):
            if exact and compressed_only:
                continue
            flat[start : start + size] = dense[at : at + size]
            at += size
        return rows

    def dense_index(self, flat: torch.Tensor) -> torch.Tensor:
        """Of flat indices into rows, the indices of the same elements in a dense array."""
        shift = [d - o for d, o in zip(self.dense_offsets, self.offsets, strict=True)]
        table = torch.tensor([*shift, 0], device=self.device)
        return flat + table[self.parameter[flat // ROW]]

    def flat_index(self, dense: torch.Tensor) -> torch.Tensor:
        """The reverse of dense_index()."""
        ends = torch.tensor(
            self.dense_offsets[1:] + [self.elements], device=self.device
        )
        owner = torch.searchsorted(ends, dense, right=True)
        shift = [o - d for d, o in zip(self.dense_offsets, self.offsets, strict=True)]
        return dense + torch.tensor([*shift, 0], device=self.device)[owner]

    def group_ranges(self) -> list[tuple[int, int, int]]:
        """(dense offset, size, group) of the compressed parameters, neighbours of one group
        joined."""
        ranges: list[tuple[int, int, int]] = []
        for offset, size, group in self._filled_parameters():
            if ranges and ranges[-1][2] == group and sum(ranges[-1][:2]) == offset:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + size, group)
            else:
                ranges.append((offset, size, group))
        return ranges

    def _filled_parameters(self) -> list[tuple[int, int, int]]:
        return [
            (self.dense_offsets[k], size, self.groups[k])
            for k, size in enumerate(self.sizes)
            if size and not self.is_exact[k]
        ]

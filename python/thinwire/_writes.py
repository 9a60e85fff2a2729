# SPDX-License-Identifier: Apache-2.0
"""Finding out whether somebody else has written into parameters."""

from __future__ import annotations

import torch

_CHUNK = 256
"""Words of 64 bits per sum: one value is kept of 2 KiB."""


class Marks:
    """Sums of a flat array's bits, which change when its values do, however they were
    written: numpy, `.data` and the like leave autograd's counters of versions alone.
    Values that are put back are no change, as after an evaluation with averaged ones.
    """

    def __init__(self, *flat: torch.Tensor) -> None:
        self._flat = [array.view(torch.uint8) for array in flat]
        self.remember()

    def remember(self) -> None:
        """Local: the values are as they should be."""
        self._sums = self._sum()

    def have_changed(self) -> bool:
        """Local: since remember()."""
        return not torch.equal(self._sums, self._sum())

    def _sum(self) -> torch.Tensor:
        return torch.cat([part for flat in self._flat for part in _sums_of(flat)])


def _sums_of(flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
    words = flat.numel() // 8
    whole = words // _CHUNK * _CHUNK
    integers = flat[: words * 8].view(torch.int64)
    tail = flat[words * 8 :].to(torch.int64)
    return integers[:whole].view(-1, _CHUNK).sum(1), integers[whole:], tail

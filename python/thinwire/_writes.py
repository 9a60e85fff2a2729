# SPDX-License-Identifier: Apache-2.0
"""Finding out whether somebody else has written into parameters."""

from __future__ import annotations

import torch

_CHUNK = 256
"""Words of 64 bits per sum: one value per 2 KiB is stored."""


class Marks:
    """Sums of a flat array's bits, which change if its values do, however they were
    written. numpy, `.data` and the like do not change autograd's counters of versions.
    Values that are restored, such as after an evaluation with averaged ones, are no
    change.
    """

    def __init__(self, *flat: torch.Tensor) -> None:
        self._flat = [array.view(torch.uint8) for array in flat]
        self.remember()

    def remember(self) -> None:
        self._sums = self._sum()

    def have_changed(self) -> bool:
        return not torch.equal(self._sums, self._sum())

    def _sum(self) -> torch.Tensor:
        return torch.cat([part for flat in self._flat for part in _sums_of(flat)])


def _sums_of(flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
    words = flat.numel() // 8
    whole = words // _CHUNK * _CHUNK
    integers = flat[: words * 8].view(torch.int64)
    tail = flat[words * 8 :].to(torch.int64)
    return integers[:whole].view(-1, _CHUNK).sum(1), integers[whole:], tail

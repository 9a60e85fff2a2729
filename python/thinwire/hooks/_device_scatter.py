# SPDX-License-Identifier: Apache-2.0
"""Reduce-scatters on the device of the gradients, in operations of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..comm.device_groups import DeviceGroups
from ._codec import BLOCK
from ._exchange import Exchange
from ._rows import copy_each
from ._shards import Piece


@dataclass
class _Slice:
    """Elements of a piece and their offset in its rows."""

    row: int
    begin: int
    size: int

    def of_rows(self, rows: torch.Tensor) -> torch.Tensor:
        begin = self.row * BLOCK
        return rows.view(-1)[begin : begin + self.size]

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        return flat[self.begin : self.begin + self.size]


class _Part:
    """The rows of one reduce-scatter. Each receiving rank, the owner, has the same
    number of rows, the last of which may be empty.
    """

    def __init__(self, pieces: Sequence[Piece], ranks: int, own: int, row: int) -> None:
        """`row` is the index of the part's first row in the residual."""
        counts = [0] * ranks
        places: list[tuple[int, int, Piece]] = []
        for piece in pieces:
            *_, size, owner = piece
            places.append((owner, counts[owner], piece))
            counts[owner] += -(-size // BLOCK)
        self.each = max(counts)
        self.rows = slice(row, row + ranks * self.each)
        self.given: list[_Slice] = []
        self.results: list[_Slice] = []
        self.residuals: list[_Slice] = []
        for owner, at, (begin, to, residual, size, _) in places:
            here = owner * self.each + at
            self.given.append(_Slice(here, begin, size))
            self.residuals.append(_Slice(row + here, residual, size))
            if owner == own:
                self.results.append(_Slice(at, to, size))


class DeviceReduceScatter:
    """Averages gradients like _core.LowBitReduceScatter, with the same bits, over the
    process group of a device. Calls queue operations on the current stream, and do not
    wait.
    """

    def __init__(
        self,
        groups: DeviceGroups,
        residual_size: int,
        parts: Sequence[Sequence[Piece]],
        bits: int,
        residual_dtype: torch.dtype,
    ) -> None:
        """Creates the residual with the value 0. `groups` must be flat. Local."""
        self._exchange, self._groups = Exchange(groups, bits), groups
        self._size = residual_size
        self._parts: list[_Part] = []
        row = 0
        for pieces in parts:
            self._parts.append(_Part(pieces, groups.hosts, groups.number, row))
            row = self._parts[-1].rows.stop
        self._residual = torch.zeros(
            row, BLOCK, dtype=residual_dtype, device=groups.device
        )

    @torch.no_grad()
    def average(
        self,
        number: int,
        gradient: torch.Tensor,
        result: torch.Tensor,
        loss_scale: float,
    ) -> None:
        """Writes this rank's pieces of a part to `result`. Collective, queued."""
        part, exchange = self._parts[number], self._exchange
        residual = self._residual[part.rows]
        rows = gradient.new_zeros(len(residual), BLOCK, dtype=torch.float32)
        copy_each(
            [piece.of_rows(rows) for piece in part.given],
            [piece.of(gradient) for piece in part.given],
        )
        if loss_scale != 1:
            rows.mul_(1 / loss_scale)
        up, error = exchange.send_up(rows.add_(residual))
        # A block that is not finite does not change its residual.
        is_finite = error[:, :1].isfinite()
        residual.copy_(torch.where(is_finite, error.to(residual), residual))
        mean = exchange.mean_between(up)
        finite = mean[:, :1].isfinite()
        mean.mul_(loss_scale)
        most = torch.finfo(result.dtype).max
        mean = torch.where(finite, mean.clamp(-most, most), mean)
        copy_each(
            [piece.of(result) for piece in part.results],
            [piece.of_rows(mean) for piece in part.results],
        )

    @property
    def bytes_per_pass(self) -> int:
        rows = sum(part.each for part in self._parts)
        return self._exchange.bytes_to_others(rows)

    @property
    def bytes_sent(self) -> int:
        return self._exchange.bytes_sent

    @property
    def wait_seconds(self) -> float:
        return self._groups.wait_seconds

    def error(self) -> torch.Tensor:
        """Returns the residual on the CPU. Waits for the device."""
        here = self._residual.cpu()
        flat = torch.zeros(self._size, dtype=here.dtype)
        for piece in self._residuals():
            piece.of(flat).copy_(piece.of_rows(here))
        return flat

    def load_error(self, error: torch.Tensor) -> None:
        given = torch.zeros(self._residual.shape, dtype=self._residual.dtype)
        for piece in self._residuals():
            piece.of_rows(given).copy_(piece.of(error))
        self._residual.copy_(given)

    def _residuals(self) -> list[_Slice]:
        return [piece for part in self._parts for piece in part.residuals]

    def give_up(self) -> None:
        self._groups.end()

    def close(self) -> None:
        self._groups.close()

# SPDX-License-Identifier: Apache-2.0
"""Saved states: arrays without gaps under the names of the native optimizers, and back. Their
table is in docs/algorithms/common.md, "State"."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.dlpack import from_dlpack

from ..errors import CorruptCheckpoint
from .rows import ROW, Rows

if TYPE_CHECKING:
    from .base import DeviceOptimizer

State = dict[str, Any]

Adoption = Callable[[], None]
"""Puts in place what was checked; cannot fail."""


class Saved:
    """A state that is read: what is missing or does not fit is a CorruptCheckpoint."""

    def __init__(self, state: State, rows: Rows) -> None:
        self._state = state
        self.rows = rows

    def __contains__(self, key: str) -> bool:
        return key in self._state

    def _value(self, key: str) -> Any:
        if key not in self._state:
            raise CorruptCheckpoint(f"the state has no '{key}'")
        return self._state[key]

    def integer(self, key: str) -> int:
        return int(self._value(key))

    def real(self, key: str) -> float:
        return float(self._value(key))

    def array(self, key: str, dtype: torch.dtype, size: int | None) -> torch.Tensor:
        """On the device, flat; floats of 16 bits are widened."""
        given = self._value(key)
        if not isinstance(given, torch.Tensor):
            given = from_dlpack(given)
        values = given.detach().reshape(-1).to(self.rows.device)
        if size is not None and values.numel() != size:
            raise CorruptCheckpoint(
                f"state array '{key}' must have {size} elements, got {values.numel()}"
            )
        if values.dtype == dtype:
            return values
        if dtype == torch.float32 and values.dtype in (torch.float16, torch.bfloat16):
            return values.float()
        raise CorruptCheckpoint(
            f"state array '{key}' must be of {dtype}, got {values.dtype}"
        )

    def values(self, key: str, size: int | None = None) -> list[float]:
        """fp64, as numbers."""
        return [float(x) for x in self.array(key, torch.float64, size).tolist()]

    def of_elements(self, key: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """[rows, 1024], 0 in the gaps."""
        return self.rows.place(self.array(key, dtype, self.rows.elements))

    def of_compressed(
        self, key: str, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """The same of an array of all elements, as compressed rows."""
        return self.of_elements(key, dtype)[: self.rows.compressed].clone()

    def elements(self, key: str) -> torch.Tensor:
        """Flat indices that an array with a value per element speaks of."""
        ranges = self.array(f"{key}.ranges", torch.int64, None).view(-1, 2)
        indices = ranges[:, 0].contiguous()
        inside = (indices >= 0) & (indices < self.rows.elements) & (ranges[:, 1] == 1)
        if not bool(inside.all()):
            raise CorruptCheckpoint(
                f"state array '{key}.ranges' must hold single elements below {self.rows.elements}"
            )
        return self.rows.flat_index(indices)

    def of_blocks(self, key: str, otherwise: float) -> torch.Tensor:
        """[compressed rows]; `otherwise` in rows without elements."""
        blocks = self.rows.blocks()
        ranges = torch.tensor([[offset, size] for _, offset, size in blocks]).view(-1)
        saved = self.array(f"{key}.ranges", torch.int64, None).cpu()
        if not torch.equal(saved, ranges.long()):
            raise CorruptCheckpoint(
                f"state array '{key}.ranges' is of other blocks than this optimizer's {len(blocks)}"
            )
        values = torch.full((self.rows.compressed,), otherwise, device=self.rows.device)
        at = torch.tensor([row for row, _, _ in blocks], device=self.rows.device).long()
        values[at] = self.array(key, torch.float32, len(blocks))
        return values


def add_elements(
    rows: Rows, state: State, name: str, flat: torch.Tensor, values: torch.Tensor
) -> None:
    """An array with a value for each of some elements, and which they are."""
    indices = rows.dense_index(flat)
    state[name] = values.clone()
    state[f"{name}.ranges"] = (
        torch.stack([indices, torch.ones_like(indices)], 1).view(-1).cpu()
    )


def add_blocks(rows: Rows, state: State, name: str, values: torch.Tensor) -> None:
    """An array with a value for each compressed row that has elements."""
    blocks = rows.blocks()
    at = torch.tensor([row for row, _, _ in blocks], device=rows.device).long()
    state[name] = values[at]
    ranges = [[offset, size] for _, offset, size in blocks]
    state[f"{name}.ranges"] = torch.tensor(ranges, dtype=torch.int64).view(-1)


def whole(rows: Rows, compressed: torch.Tensor, otherwise: int = 0) -> torch.Tensor:
    """A dense array of all elements from one of compressed rows."""
    full = torch.full(
        (rows.count, ROW), otherwise, dtype=compressed.dtype, device=rows.device
    )
    full[: rows.compressed] = compressed
    return rows.dense(full)


def load(optimizer: DeviceOptimizer, state: State) -> None:
    """Takes up a state whose owner fits; all that can fail comes before anything changes."""
    model = optimizer.model
    saved = Saved(state, model.rows)
    rates = saved.values("learning_rates", len(model.settings.groups))
    if not all(0 <= rate < float("inf") for rate in rates):
        raise CorruptCheckpoint(
            f"saved learning rates must be finite and >= 0, got {rates}"
        )
    exp_avg = saved.of_elements("exp_avg")
    exp_avg_sq = saved.of_elements("exp_avg_sq") if "exp_avg_sq" in saved else None
    steps, skipped = saved.integer("step"), saved.integer("skipped_steps")
    has_masters = model.settings.dtype != torch.float32 and (
        steps > 0 or "masters" in saved
    )
    masters = saved.of_elements("masters") if has_masters else None
    scaler = optimizer._scaler
    adopt_scale = (
        scaler.read(saved) if scaler is not None and "loss_scale" in saved else None
    )
    adopt_own = optimizer._read_own(saved)

    for group, rate in zip(model.settings.groups, rates, strict=True):
        group.learning_rate = rate
    optimizer.steps, optimizer.skipped_steps = steps, skipped
    model.exp_avg, model.exp_avg_sq = exp_avg, exp_avg_sq
    if masters is not None:
        optimizer._masters = masters
    if adopt_scale is not None:
        adopt_scale()
    adopt_own()
    if masters is not None:
        optimizer._repeat_local_steps(masters)

# SPDX-License-Identifier: Apache-2.0
"""Which elements take part in compressed steps, and late ones that come to life:
docs/algorithms/late-and-heavy.md."""

from __future__ import annotations

import torch

from .codec import pack, scale_divisors, unpack
from .model import Model

OUT, TAKES_PART, LATE = 0, 1, 2


class Participation:
    """Of every compressed row.

    Attributes:
        values: [rows, 1024] uint8 of OUT (masked, or no element), TAKES_PART, LATE (out until
            its first gradient on any rank).
        active: The same as bool: who takes part.
        divisor: [rows] fp32, what a row's scale is divided by.
        is_listed: Some element did not take part when this was set.
        num_out: Elements that do not.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        rows = model.rows
        self._is_element = rows.valid(slice(0, rows.compressed))
        self._wanted = self._is_element & caller_mask(model)
        self.set(self._is_element.to(torch.uint8))

    def set(self, values: torch.Tensor) -> None:
        """Takes [rows, 1024] uint8; what had been heard of late elements is forgotten."""
        self.values = values
        self._late = values == LATE
        self._heard = torch.zeros_like(self._late)
        self._refresh()
        self.is_listed = self.num_out > 0

    def _refresh(self) -> None:
        self.active = self.values == TAKES_PART
        self.divisor = scale_divisors(self.active.sum(1), self._model.settings.l1_scale)
        self.num_out = int((self._is_element & ~self.active).sum())
        self._late_rows = self._late.any(1).nonzero()[:, 0]

    def by_variance(self, variance: torch.Tensor) -> torch.Tensor:
        """Who would take part by the caller's masks and a variance of compressed rows."""
        late = torch.where(variance == 0, LATE, TAKES_PART)
        return torch.where(self._wanted, late, OUT).to(torch.uint8)

    # ---- late elements

    def _arrived(self, grads: torch.Tensor) -> torch.Tensor:
        at = self._late_rows
        return self._late[at] & ((grads[at] != 0) | self._heard[at])

    def has_late(self, grads: torch.Tensor) -> torch.Tensor | None:
        """Whether a late element has a gradient here, a bool tensor; None: nothing is late."""
        return self._arrived(grads).any() if len(self._late_rows) else None

    def remember(self, grads: torch.Tensor) -> None:
        """Of a step in which nothing is exchanged: the next revive() counts them."""
        if len(self._late_rows):
            self._heard[self._late_rows] = self._arrived(grads)

    def revive(self, grads: torch.Tensor) -> torch.Tensor:
        """Collective: late elements with a gradient on some rank take part from now on.
        Returns their indices in the compressed rows, flat and ascending."""
        at = self._late_rows
        arrived = self._arrived(grads)
        for packed in self._model.exchange.all_gather(pack(arrived)).wait():
            arrived = arrived | unpack(packed)
        woken = torch.zeros_like(self._late)
        woken[at] = arrived
        self.values[woken] = TAKES_PART
        self._late &= ~woken
        self._heard.zero_()
        self._refresh()
        return woken.view(-1).nonzero()[:, 0]

    # ---- state

    def heard(self) -> torch.Tensor | None:
        """Flat indices of late elements that had a gradient here; None: nothing is late."""
        return self._heard.view(-1).nonzero()[:, 0] if len(self._late_rows) else None

    def load_heard(self, indices: torch.Tensor) -> None:
        self._heard.view(-1)[indices] = True
        self._heard &= self._late


def caller_mask(model: Model) -> torch.Tensor:
    """[compressed rows, 1024] bool: False where a group's exp_avg_mask is 0."""
    rows = model.rows
    masks = [group.exp_avg_mask for group in model.settings.groups]
    dense = torch.ones(rows.elements, dtype=torch.bool, device=rows.device)
    used = [0] * len(masks)
    for offset, size, group in zip(
        rows.dense_offsets, rows.sizes, rows.groups, strict=True
    ):
        mask = masks[group]
        if mask is None:
            continue
        own = mask[used[group] : used[group] + size]
        dense[offset : offset + size] = own.to(rows.device) != 0
        used[group] += size
    return rows.place(dense)[: rows.compressed]

# SPDX-License-Identifier: Apache-2.0
"""What compressed steps divide by: medians, caps, floors, and bounds of what would spoil a row.
docs/algorithms/late-and-heavy.md has the rules."""

from __future__ import annotations

import torch

from .model import Model
from .participation import LATE, OUT, TAKES_PART, Participation
from .sums import squares

_CAP_OF_MEDIAN = 10.0


class Denominators:
    """Of the compressed rows.

    Attributes:
        values: [rows, 1024] fp32, above 0 everywhere; None before the first fit().
        medians, floors: [rows] fp32.
        heavy: Flat indices, ascending, of elements far above their row, and `factors` fp32:
            what their gradients are multiplied by.
    """

    def __init__(self, model: Model, participation: Participation) -> None:
        self._model = model
        self._participation = participation
        device = model.rows.device
        self.values: torch.Tensor | None = None
        self.medians = torch.ones(model.rows.compressed, device=device)
        self.floors = torch.zeros(model.rows.compressed, device=device)
        self.heavy = torch.zeros(0, dtype=torch.int64, device=device)
        self.factors = torch.zeros(0, device=device)

    @property
    def d(self) -> torch.Tensor:
        assert self.values is not None
        return self.values

    def fit(self, d: torch.Tensor, who: torch.Tensor) -> None:
        """`d` are sqrt(v) + eps, overwritten; `who` says who takes part by the variance. Scales
        the momentum of heavy elements, and makes it 0 where d is not finite."""
        m = self._model.exp_avg[: self._model.rows.compressed]
        overflowed = ~torch.isfinite(d)
        m[overflowed] = 0
        who[overflowed] = OUT
        live = who == TAKES_PART
        self._find_medians(d, live)
        cap = (_CAP_OF_MEDIAN * self.medians)[:, None]
        is_heavy = live & (d > cap)
        self.heavy = is_heavy.view(-1).nonzero()[:, 0]
        self.factors = (cap / d).view(-1)[self.heavy]
        d = torch.where(is_heavy, cap, d)
        m.view(-1)[self.heavy] *= self.factors
        self.values = d
        self.refit(slice(None), who)
        self._participation.set(who)

    def refit(self, rows: slice, who: torch.Tensor) -> None:
        """Raises rows to their floors after their variance has moved; medians stay."""
        d, medians = self.d[rows], self.medians[rows]
        live = who == TAKES_PART
        cap = (_CAP_OF_MEDIAN * medians)[:, None]
        capped = torch.where(live, torch.minimum(d, cap), 0.0)
        count = live.sum(1)
        mean = squares(capped, self._model.ordered) / count.clamp(min=1)
        rms = torch.where(count > 0, mean.sqrt(), medians.double())
        floors = (self._model.settings.own.denom_floor * rms).float()
        of_late = torch.maximum(medians, floors)
        has_own = torch.isfinite(d) & (who != LATE)
        raised = torch.maximum(d, floors[:, None])
        self.d[rows] = torch.where(has_own, raised, of_late[:, None])
        self.floors[rows] = floors

    def _find_medians(self, d: torch.Tensor, live: torch.Tensor) -> None:
        """Element n / 2 of a row's sorted n live ones; of its parameter, else of the model,
        else 1, where a row has none."""
        count = live.sum(1)
        ascending = torch.where(live, d, torch.inf).sort(1).values
        self.medians = ascending.gather(
            1, (count // 2).clamp(max=d.shape[1] - 1)[:, None]
        )[:, 0]
        missing = count == 0
        if not bool(missing.any()):
            return
        of_model: torch.Tensor | None = None
        rows = self._model.rows
        self.medians[missing] = 1.0  # rows without elements keep that
        for k in range(len(rows.sizes)):
            own = rows.rows_of(k)
            if rows.is_exact[k] or not bool(missing[own].any()):
                continue
            median = _median(d[own][live[own]])
            if median is None:
                if of_model is None:
                    of_model = _median(d[live])
                median = d.new_ones(()) if of_model is None else of_model
            self.medians[own] = torch.where(missing[own], median, self.medians[own])

    def guard(self, grads: torch.Tensor, grad_scale: float) -> None:
        """Before gradients [compressed rows, 1024] are encoded: heavy elements are scaled down,
        outliers bounded, both in place."""
        if self.values is None:
            return
        if len(self.heavy):
            flat = grads.view(-1)
            flat[self.heavy] = (flat[self.heavy].float() * self.factors).to(grads.dtype)
        model = self._model
        bounds = torch.tensor(
            model.outlier_bounds(), dtype=torch.float64, device=model.rows.device
        )[model.rows.group]
        squared_scale = grad_scale * grad_scale
        for rows in model.buckets:
            g, bound = grads[rows], bounds[rows]
            total = squares(g, model.ordered) * squared_scale
            limit = bound * model.settings.outlier_gate * self.medians[rows].double()
            has_outlier = torch.isfinite(total) & (total > limit * limit)
            most = (bound / grad_scale)[:, None] * self.d[rows].double()
            wide = g.float()
            too_far = has_outlier[:, None] & (wide.abs() > most.float())
            g.copy_(torch.where(too_far, torch.copysign(most.float(), wide), wide))


def _median(values: torch.Tensor) -> torch.Tensor | None:
    """Element n / 2 of the sorted n."""
    return values.sort().values[values.numel() // 2] if values.numel() else None

# SPDX-License-Identifier: Apache-2.0
"""What ranks learn of each other's gradients in a step: whether they are finite, how long they
are, and in exact steps their average. The rules are those of docs/algorithms/common.md."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .model import Model, Report, StepInput
from .sums import squares, total_squares


def clip_factor(norm: float, most: float) -> float:
    """min(1, most / norm); 1 where most is 0."""
    return most / norm if most > 0 and norm > most else 1.0


def sum_of_squares(model: Model, values: torch.Tensor) -> torch.Tensor:
    """Of an array of rows: a tensor without dimensions, fp64."""
    if model.ordered:
        return total_squares(model.rows.dense(values))
    total = torch.zeros((), dtype=torch.float64, device=values.device)
    for piece in model.pieces:
        total = total + squares(values[piece], False).sum()
    return total


@dataclass
class CalibratedNorm:
    """Estimates the averaged gradient's norm where it is never formed."""

    ratio: float = 1.0
    measured: bool = False

    def measure(self, mean_norm: float, rms_norm: float) -> None:
        if rms_norm == 0:
            return
        ratio = mean_norm / rms_norm
        self.ratio = 0.9 * self.ratio + 0.1 * ratio if self.measured else ratio
        self.measured = True


@dataclass
class LaggedNorm:
    """What a compressed step is clipped by with lagged clipping: norms of the steps before, as
    optim/gradient_agreement.h has them. 0: not known, so any step is a spike."""

    reference: float = 0.0

    def take(self, rms_norm: float) -> float:
        """A compressed step of this norm is taken: what it is clipped by."""
        before, most = self.reference, 2 * self.reference
        self.reference = rms_norm if before == 0 or rms_norm < most else most
        return rms_norm if rms_norm > most else before


class FirstAgreements:
    """Gradients of one norm in the first two steps were probably averaged before."""

    def __init__(self) -> None:
        self._left = 2

    def report_equal(self, of_ranks: list[float], report: Report) -> None:
        """Of the ranks' sums of squares."""
        first = of_ranks[0]
        equal = len(of_ranks) > 1 and first > 0 and math.isfinite(first)
        equal = equal and all(total == first for total in of_ranks)
        report.gradients_equal = equal and self._left > 0
        self._left -= 1


class Gradients:
    """The one scalar exchange of a step, two doubles per rank, and what follows from it."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.norm = CalibratedNorm()
        self.lagged = LaggedNorm()
        self.left_out_a_step = False
        self.any_late = False
        self._first = FirstAgreements()

    def _agree(self, step: StepInput, has_late: torch.Tensor | None) -> float | None:
        """The root mean square of the ranks' norms; None if the step is skipped. Waits for the
        device: the one synchronisation of a compressed step."""
        model, report = self._model, step.report
        own = torch.zeros(2, dtype=torch.float64, device=model.rows.device)
        own[0] = sum_of_squares(model, step.grads)
        own[1] = float(self.left_out_a_step)
        if has_late is not None:
            own[1] += 2 * has_late
        ranks = model.exchange.all_gather(own).wait().tolist()
        nonfinite = [
            r for r, (total, _) in enumerate(ranks) if not math.isfinite(total)
        ]
        left_out = [r for r, (_, flags) in enumerate(ranks) if int(flags) & 1]
        self.any_late = any(int(flags) & 2 for _, flags in ranks)
        self._first.report_equal([total for total, _ in ranks], report)
        if nonfinite and self._skips(step):
            report.applied = False
            report.nonfinite_rank = nonfinite[0]
            return None
        report.nonfinite_rank = left_out[0] if left_out else -1
        self.left_out_a_step = False
        total = 0.0
        for own_total, _ in ranks:
            total += own_total
        return _root(total / model.world) / step.loss_scale

    def _skips(self, step: StepInput) -> bool:
        return self._model.settings.skip_nonfinite or step.is_scaled

    def average(self, step: StepInput) -> float | None:
        """Gradients become their sum over the ranks (16-bit ones their mean); returns what to
        multiply them by, None if the step is skipped."""
        rms_norm = self._agree(step, None)
        if rms_norm is None:
            return None
        model, report = self._model, step.report
        scale = exact_average(model, step)
        if scale is not None:
            self.norm.measure(report.grad_norm, rms_norm)
            self.lagged.reference = rms_norm
        return scale

    def clip_by_estimate(
        self, step: StepInput, has_late: torch.Tensor | None
    ) -> float | None:
        """What to multiply this rank's own gradient by, in a step that averages momentum."""
        rms_norm = self._agree(step, has_late)
        if rms_norm is None:
            return None
        lags = self._model.settings.lagged_clipping
        by = self.lagged.take(rms_norm) if lags else rms_norm
        return self._clip(rms_norm, by, step.report) / step.loss_scale

    def clip_locally(self, step: StepInput) -> float | None:
        """The same in a step in which nothing is exchanged; None if this rank leaves it out."""
        own = sum_of_squares(self._model, step.grads)
        step.report.grad_norm_is_estimate = True
        if step.is_scaled and not find_nonfinite(self._model, own, step.report):
            return None
        squares_here = own.item()
        if self._skips(step) and not math.isfinite(squares_here):
            self.left_out_a_step = True
            return None
        norm = _root(squares_here) / step.loss_scale
        return self._clip(norm, norm, step.report) / step.loss_scale

    def _estimate(self, rms_norm: float) -> float:
        return self.norm.ratio * rms_norm

    def _clip(self, rms_norm: float, by: float, report: Report) -> float:
        """`by`: the RMS norm to clip by."""
        report.grad_norm = self._estimate(rms_norm)
        report.grad_norm_is_estimate = True
        most = self._model.settings.max_grad_norm
        report.clip_factor = clip_factor(self._estimate(by), most)
        return report.clip_factor


def find_nonfinite(
    model: Model,
    own_squares: torch.Tensor,
    report: Report,
    first: FirstAgreements | None = None,
) -> bool:
    """Collective: whether gradients are finite on all ranks; if not the step is not applied, and
    the report names the lowest rank."""
    ranks = model.exchange.all_gather(own_squares.view(1)).wait().view(-1).tolist()
    if first is not None:
        first.report_equal(ranks, report)
    nonfinite = [r for r, total in enumerate(ranks) if not math.isfinite(total)]
    if nonfinite:
        report.applied = False
        report.nonfinite_rank = nonfinite[0]
    return not nonfinite


def exact_average(model: Model, step: StepInput) -> float | None:
    """The exact half of average(), which is all that exact optimizers need: a sum shows what is
    not finite on any rank."""
    model.exchange.sum_(step.grads, model.ordered)
    divisor = step.loss_scale * model.sum_divisor(step.grads)
    report = step.report
    report.grad_norm = _root(sum_of_squares(model, step.grads).item()) / divisor
    skips = model.settings.skip_nonfinite or step.is_scaled
    if skips and not math.isfinite(report.grad_norm):
        report.applied = False
        return None
    report.clip_factor = clip_factor(report.grad_norm, model.settings.max_grad_norm)
    return report.clip_factor / divisor


def _root(x: float) -> float:
    return math.sqrt(x) if x >= 0 else math.nan

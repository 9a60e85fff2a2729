# SPDX-License-Identifier: Apache-2.0
"""The compressed all-reduce of arXiv:2102.02888 on rows, with both residuals, and the momentum
that travels by it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .adam import Coefficients, moved, next_momentum
from .codec import (
    average,
    decode,
    dequantize,
    encode,
    quantize,
    quantized_average,
    signed,
)
from .exchange import Pending
from .model import Model, StepInput
from .participation import Participation

Source = Callable[[slice], torch.Tensor]
"""Gives this rank's values of some rows, [rows, 1024] fp32."""
Sink = Callable[[slice, torch.Tensor, torch.Tensor], None]
"""Takes the result of some rows: scales [rows, 1] and signs [rows, 1024]."""


class CompressedMomentum:
    """m lies in Model.exp_avg, as values; 0 where masked after an exchange.

    Attributes:
        worker_error: [compressed rows, 1024] of residual_dtype, this rank's; None before the
            first exchange, as is
        server_error: [compressed rows / ranks, 1024], of the rows that it serves.
        units: [rows] fp32, what an exchange multiplies the momentum by; None: 1.
    """

    def __init__(self, model: Model, participation: Participation) -> None:
        self._model = model
        self._who = participation
        self.worker_error: torch.Tensor | None = None
        self.server_error: torch.Tensor | None = None
        self.units: torch.Tensor | None = None

    # ---- the step of the papers

    def all_reduce(self, step: StepInput, c: Coefficients, d: torch.Tensor) -> None:
        """Collective: m becomes the 1-bit mean of beta1 m + (1 - beta1) g_i, and parameters
        move by it over `d`."""
        model = self._model
        if not model.compresses:
            self.apply_own(step, c, d)
            return

        def take(rows: slice, scale: torch.Tensor, plus: torch.Tensor) -> None:
            m = signed(scale, plus, self._who.active[rows])
            model.exp_avg[rows] = m
            step.params[rows] = moved(step.params[rows], m, d[rows], c.of(rows))

        self.run(lambda rows: self.next(rows, step.grads, c), take)

    def apply_own(self, step: StepInput, c: Coefficients, d: torch.Tensor) -> None:
        """The same without an exchange."""
        for rows in self._model.buckets:
            m = self.update(rows, step.grads, c)
            step.params[rows] = moved(step.params[rows], m, d[rows], c.of(rows))

    def next(self, rows: slice, grads: torch.Tensor, c: Coefficients) -> torch.Tensor:
        """beta1 m + (1 - beta1) g_i."""
        own = c.of(rows)
        return next_momentum(
            self._model.exp_avg[rows], grads[rows].float() * own.grad_scale, own
        )

    def update(self, rows: slice, grads: torch.Tensor, c: Coefficients) -> torch.Tensor:
        """Makes that the momentum, 0 where masked."""
        m = torch.where(self._who.active[rows], self.next(rows, grads, c), 0.0)
        self._model.exp_avg[rows] = m
        return m

    # ---- the exchange

    def make_residuals(self) -> tuple[torch.Tensor, torch.Tensor]:
        rows, dtype = self._model.rows, self._model.settings.residual_dtype
        if self.worker_error is None or self.server_error is None:
            self.worker_error = rows.zeros(rows.compressed, dtype)
            self.server_error = rows.zeros(rows.compressed // self._model.world, dtype)
        return self.worker_error, self.server_error

    def clear_residuals(self) -> None:
        for error in (self.worker_error, self.server_error):
            if error is not None:
                error.zero_()

    def served(self, rows: slice) -> slice:
        """Which rows of a bucket this rank averages."""
        share = (rows.stop - rows.start) // self._model.world
        first = rows.start + self._model.exchange.rank * share
        return slice(first, first + share)

    def _server_rows(self, rows: slice) -> slice:
        """Where their residuals lie."""
        return slice(rows.start // self._model.world, rows.stop // self._model.world)

    def run(self, source: Source, sink: Sink) -> None:
        """Collective: the error-compensated 1-bit mean of `source`, row by row. A bucket is
        encoded while the one before it travels."""
        model = self._model
        worker, server = self.make_residuals()

        def to_servers(rows: slice) -> torch.Tensor:
            error, record = self._encode(source(rows) + worker[rows].float(), rows)
            worker[rows] = error.to(worker.dtype)
            return record

        def serve(rows: slice, received: torch.Tensor) -> torch.Tensor:
            own, mine = self._server_rows(rows), self.served(rows)
            mean = average(received, 1.0 / model.world)
            error, record = self._encode(mean + server[own].float(), mine)
            server[own] = error.to(server.dtype)
            return record

        self._in_two_phases(
            to_servers, serve, lambda rows, record: sink(rows, *decode(record))
        )

    def _encode(
        self, c: torch.Tensor, rows: slice
    ) -> tuple[torch.Tensor, torch.Tensor]:
        model = self._model
        return encode(
            c,
            self._who.active[rows],
            self._who.divisor[rows],
            model.ordered,
            model.settings.l1_scale,
        )

    def run_in_4_bits(
        self,
        source: Source,
        c: Coefficients,
        sink: Callable[[slice, torch.Tensor], None],
    ) -> None:
        """Collective: the mean of `source` in four bits; what rounding takes joins the
        residuals with the weight 1 - beta1."""
        model = self._model
        worker, server = self.make_residuals()

        def keep(
            error: torch.Tensor, at: slice, lost: torch.Tensor, rows: slice
        ) -> None:
            weighted = error[at].float() + c.of(rows).one_minus_beta1 * lost
            kept = torch.where(self._who.active[rows], weighted, error[at].float())
            error[at] = kept.to(error.dtype)

        def to_servers(rows: slice) -> torch.Tensor:
            lost, record = quantize(source(rows), self._who.active[rows])
            keep(worker, rows, lost, rows)
            return record

        def serve(rows: slice, received: torch.Tensor) -> torch.Tensor:
            mine = self.served(rows)
            mean = quantized_average(received, 1.0 / model.world)
            lost, record = quantize(mean, self._who.active[mine])
            keep(server, self._server_rows(rows), lost, mine)
            return record

        def take(rows: slice, record: torch.Tensor) -> None:
            sink(rows, torch.where(self._who.active[rows], dequantize(record), 0.0))

        self._in_two_phases(to_servers, serve, take)

    def _in_two_phases(
        self,
        to_servers: Callable[[slice], torch.Tensor],
        serve: Callable[[slice, torch.Tensor], torch.Tensor],
        take: Callable[[slice, torch.Tensor], None],
    ) -> None:
        exchange = self._model.exchange
        buckets = self._model.buckets
        sent: list[Pending] = []
        served: list[Pending] = []
        for k in range(len(buckets) + 2):
            if k < len(buckets):
                sent.append(exchange.all_to_all(to_servers(buckets[k])))
            if 0 <= k - 1 < len(buckets):
                record = serve(buckets[k - 1], sent[k - 1].wait())
                served.append(exchange.all_gather(record))
            if k >= 2:
                gathered = served[k - 2].wait()
                take(buckets[k - 2], gathered.view(-1, gathered.shape[-1]))

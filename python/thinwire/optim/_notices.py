# SPDX-License-Identifier: Apache-2.0
"""Notices about a run, which appear once, and its traffic, which checkpoints preserve."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from .. import _core, _log
from .._log import logger
from ..report import StepReport

_OWN_GRADIENTS = (
    "If all ranks read the same data, give each rank its own, for example with "
    "DistributedSampler. If DistributedDataParallel averages gradients already, results "
    "are right, but no bytes are saved: call thinwire.local_gradients(ddp), or attach() of "
    "thinwire.integrations"
)
_STATE = ("announced", "ranks", "bytes_of_exact_step", "exactly", "sent", "if_exact")
"""Names of the values of _core.RunNotices.state in checkpoints."""


@dataclass(frozen=True)
class RunTotals:
    """Traffic of this rank in a run, from its first step on."""

    bytes_sent: int
    """Bytes that steps sent to other ranks."""
    bytes_saved: int
    """Additional bytes that steps would have sent without compression, at the rate of
    this run's exact steps. The bytes of an exact step that averaged in b bits count 32
    / b times. Steps before the first exact step add nothing.
    """


class Notices:
    """Passes rank 0's notices to the log or to warnings. _core.RunNotices writes the
    notices about the run.
    """

    def __init__(self, comm: _core.Communicator) -> None:
        self._comm = comm
        self._said: set[str] = set()
        self._run: _core.RunNotices

    def at_start(self, config: _core.Config, freeze_step: int | None) -> None:
        """Begins a run whose planned last exact step is `freeze_step`."""
        rank, ranks = self._comm.rank, self._comm.size
        self._run = _core.RunNotices(config, rank, ranks, _OWN_GRADIENTS)
        self._tell(self._run.at_start(freeze_step))

    def after_step(
        self,
        report: StepReport,
        steps: int,
        skipped: int,
        freeze_step: int | None,
        loss_scale: float | None = None,
    ) -> None:
        """Counts a step, and passes on new notices. `skipped` is the number of skipped
        steps so far, and `loss_scale` is the scale of the next step, if known.
        """
        _log.forward(self._comm)
        self._tell(
            self._run.after_step(report, steps, skipped, freeze_step, loss_scale)
        )

    def skipped(self, report: StepReport, steps: int, skipped: int) -> None:
        """Passes on a notice of a step that was skipped without an exchange."""
        self._tell(self._run.skipped(report, steps, skipped, None, None))

    @property
    def totals(self) -> RunTotals:
        return RunTotals(*self._run.totals)

    def to_text(self) -> str:
        """Returns the text for continue_from()."""
        values = dict(zip(_STATE, self._run.state, strict=True))
        return json.dumps(values | {"announced": sorted(self._run.state[0])})

    def continue_from(self, text: str | None, saved_by: int) -> None:
        """Continues the run that `text` describes and `saved_by` ranks saved. Local. A
        text of None, from an earlier version, changes nothing. If the text cannot be
        read, logs a warning and counts anew, because no step depends on the counts.
        """
        if text is None:
            return
        try:
            saved = json.loads(text)
            saved.setdefault("ranks", saved_by)
            saved.setdefault("exactly", saved["bytes_of_exact_step"])
            announced = {str(key) for key in saved["announced"]}
            self._run.restore(announced, *(int(saved[name]) for name in _STATE[1:]))
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError):
            logger.warning(
                "the saved totals of the run cannot be read: they begin anew"
            )

    def on_device(self, name: str, ranks_per_host: int) -> None:
        if self._comm.rank == 0 and ranks_per_host > 1:
            logger.info(
                "%s: %d ranks share a host, and each updates all parameters in its memory. "
                "An optimizer in your own loop has no leader per host; the engine of "
                "thinwire.initialize() has one",
                name,
                ranks_per_host,
            )

    def of_deepspeed(self, names: list[str]) -> None:
        if names and self._comm.rank == 0:
            logger.info(
                "%s: accepted for DeepSpeed's scripts; ranks exchange over %s",
                ", ".join(names),
                self._comm.backend,
            )

    def loaded(self, notes: list[str]) -> None:
        if self._comm.rank == 0:
            for note in notes:
                logger.info("%s", note)

    def unsaved(self, text: str) -> None:
        """Logs once that something is not saved."""
        if "unsaved" not in self._said and self._comm.rank == 0:
            self._said.add("unsaved")
            logger.warning("%s", text)

    def warn(self, key: str, text: str) -> None:
        """Warns once per key, on any rank."""
        if key not in self._said:
            self._said.add(key)
            _log.warn(text)

    def _tell(self, lines: Iterable[tuple[str, str]]) -> None:
        for kind, text in lines:
            if kind == "mistake":
                _log.warn(text)
            else:
                level = logging.WARNING if kind == "news" else logging.INFO
                logger.log(level, "%s", text)

# SPDX-License-Identifier: Apache-2.0
"""Traffic and notices of a whole run, which checkpoints preserve."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._log import logger
from ..report import StepReport

if TYPE_CHECKING:
    from .._checkpoints import Found

SAVED_AS = "thinwire/run"
"""Its name among the values that each rank saves."""


@dataclass(frozen=True)
class RunTotals:
    """Traffic of this rank in a run, from its first step on."""

    bytes_sent: int
    """Bytes that steps sent to other ranks."""
    bytes_saved: int
    """Additional bytes if every step had sent as much as this run's exact steps; one
    that averaged over b bits counts 32 / b times. Steps before the first count as they
    were.
    """


class Run:
    """Counts what steps send, and remembers which notices were given."""

    def __init__(self) -> None:
        self.announced: set[str] = set()
        self.bytes_of_exact_step = 0
        """Bytes of the latest exact step; 0 if there was none."""
        self._exactly = 0
        """The same if it had averaged exactly."""
        self._sent = 0
        self._if_exact = 0

    def count(self, report: StepReport) -> None:
        if report.phase == "exact" and report.applied:
            self.bytes_of_exact_step = report.bytes_sent
            self._exactly = report.bytes_sent * (32 // (report.bits or 32))
        self._sent += report.bytes_sent
        self._if_exact += self._exactly or report.bytes_sent

    @property
    def totals(self) -> RunTotals:
        return RunTotals(self._sent, self._if_exact - self._sent)

    def to_text(self) -> str:
        return json.dumps(
            {
                "announced": sorted(self.announced),
                "bytes_of_exact_step": self.bytes_of_exact_step,
                "exactly": self._exactly,
                "sent": self._sent,
                "if_exact": self._if_exact,
            }
        )

    def continue_from(self, text: str | None) -> None:
        """Continues from to_text(), or counts anew if that cannot be read."""
        if text is None:
            return
        try:
            saved = json.loads(text)
            announced = {str(key) for key in saved["announced"]}
            names = ("bytes_of_exact_step", "sent", "if_exact")
            numbers = [int(saved[name]) for name in names]
            exactly = int(saved.get("exactly", numbers[0]))
        except (ValueError, TypeError, KeyError, OverflowError):
            logger.warning(
                "the saved totals of the run cannot be read: they begin anew"
            )
            return
        self.announced |= announced
        self.bytes_of_exact_step, self._sent, self._if_exact = numbers
        self._exactly = exactly


def saved_in(report: Found) -> str | None:
    """Returns this rank's text, otherwise that of the first rank that saved."""
    for values in (report.own, *report.own_of_ranks):
        text = values.get(SAVED_AS)
        if isinstance(text, str):
            return text
    return None

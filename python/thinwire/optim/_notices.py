# SPDX-License-Identifier: Apache-2.0
"""Traffic of a run, which checkpoints preserve, and notices, which appear once."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from .. import _core, _log
from .._log import logger
from ..report import StepReport


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

    def __init__(self, ranks: int) -> None:
        self.announced: set[str] = set()
        self._ranks = ranks
        self._ranks_of_exact_step = ranks
        self._of_exact_step = 0
        """Bytes of the latest exact step, among so many ranks; 0 if there was none."""
        self._exactly = 0
        """The same if it had averaged exactly."""
        self._sent = 0
        self._if_exact = 0

    def count(self, report: StepReport) -> None:
        # A single rank sends nothing; it keeps the step of more ranks for a later resume.
        sends_elements = report.phase == "exact" and not report.low_rank
        if sends_elements and report.applied and self._ranks > 1:
            self._ranks_of_exact_step = self._ranks
            self._of_exact_step = report.bytes_sent
            self._exactly = report.bytes_sent * (32 // (report.bits or 32))
        self._sent += report.bytes_sent
        self._if_exact += self._among_ranks(self._exactly) or report.bytes_sent

    @property
    def bytes_of_exact_step(self) -> int:
        """Bytes of the latest exact step among this run's ranks; 0 if there was none."""
        return self._among_ranks(self._of_exact_step)

    def _among_ranks(self, sent: int) -> int:
        """Converts bytes of an exact step, of which W ranks send (W - 1) / W each."""
        now, then = self._ranks, self._ranks_of_exact_step
        return sent if now == then else sent * (now - 1) * then // (now * (then - 1))

    @property
    def totals(self) -> RunTotals:
        return RunTotals(self._sent, self._if_exact - self._sent)

    def to_text(self) -> str:
        return json.dumps(
            {
                "announced": sorted(self.announced),
                "ranks": self._ranks_of_exact_step,
                "bytes_of_exact_step": self._of_exact_step,
                "exactly": self._exactly,
                "sent": self._sent,
                "if_exact": self._if_exact,
            }
        )

    def continue_from(self, text: str | None, saved_by: int) -> None:
        """Continues from the result of to_text(), saved by so many ranks. Local. None,
        of an earlier version, changes nothing. If the text cannot be read, logs it and
        counts anew, because no step depends on it.
        """
        if text is None:
            return
        try:
            saved = json.loads(text)
            announced = {str(key) for key in saved["announced"]}
            names = ("bytes_of_exact_step", "sent", "if_exact")
            numbers = [int(saved[name]) for name in names]
            exactly = int(saved.get("exactly", numbers[0]))
            ranks = int(saved.get("ranks", saved_by))
            if ranks < 2:  # nobody has measured a step that sends something
                ranks, numbers[0], exactly = self._ranks, 0, 0
        except (ValueError, TypeError, KeyError, OverflowError):
            logger.warning(
                "the saved totals of the run cannot be read: they begin anew"
            )
            return
        self.announced |= announced
        self._of_exact_step, self._sent, self._if_exact = numbers
        self._exactly, self._ranks_of_exact_step = exactly, ranks


_PHASES = {
    "compressed": "momentum in one bit per element",
    "local": "nothing in most steps, and one bit per element in some",
}
_PATIENCE = 1000
"""Exact steps after which a run is told that nothing was compressed yet."""


class Notices:
    """Lines of the log and warnings; those of a run are not repeated on resume."""

    def __init__(self, comm: _core.Communicator) -> None:
        self._comm = comm
        self._said: set[str] = set()
        self._sync_every = 0
        self.run = Run(comm.size)

    def at_start(self, config: _core.Config, planned: int | None) -> None:
        """Warns if the run ends before `planned`, the last exact step, or before its
        steps of low rank begin.
        """
        self._sync_every = config.outer.sync_every
        self._compare_first_steps(config.average)
        options = config.keywords()
        total = options.get("total_steps")
        if planned is None or total is None or planned < total or self._comm.size == 1:
            return
        name = "freeze_step" if "freeze_step" in options else "var_freeze_step"
        loss = (
            "nothing will be compressed"
            if name == "freeze_step"
            else "there will be no local steps"
        )
        self._warn_of_run(
            "never",
            f"{name} is {planned}, and the run has total_steps={total}: {loss}. Leave "
            f"{name} out, which then follows from total_steps, or name a smaller one",
        )

    def _compare_first_steps(self, average: _core.AverageOptions) -> None:
        first, total = average.planned_first_steps, average.total_steps
        if self._comm.size == 1 or average.low_rank == 0 or total is None:
            return
        if first >= total:
            self._warn_of_run(
                "no low rank",
                f"first_steps is {first}, and the run has total_steps={total}: no step "
                f"will be of low rank, and all average over {average.first_bits} bits. "
                "Name fewer first_steps",
            )

    def on_device(self, name: str, ranks_per_host: int) -> None:
        if self._comm.rank == 0 and ranks_per_host > 1:
            _log.logger.info(
                "%s: %d ranks share a host, and each updates all parameters in its memory. "
                "An optimizer in your own loop has no leader per host; the engine of "
                "thinwire.initialize() has one",
                name,
                ranks_per_host,
            )

    def after_step(
        self, report: StepReport, steps: int, planned: int | None = None
    ) -> None:
        """Notes what is new: compression begins or does not, a step is skipped,
        gradients are equal. `planned` is the last exact step of an optimizer that will
        compress.
        """
        _log.forward(self._comm)
        before = self.run.bytes_of_exact_step
        self.run.count(report)
        if self._comm.size > 1:
            self._say_how_ranks_average(report, steps, planned, before)
        if report.gradients_equal and self._comm.rank == 0:
            self.warn(
                "gradients",
                "all ranks had the same gradients. If all ranks read the same data, give "
                "each rank its own, for example with DistributedSampler. If "
                "DistributedDataParallel averages gradients already, results are right, but "
                "no bytes are saved: call thinwire.local_gradients(ddp), or attach() of "
                "thinwire.integrations",
            )

    def _say_how_ranks_average(
        self, report: StepReport, steps: int, planned: int | None, before: int
    ) -> None:
        announced = self.run.announced
        instead = (
            f"; a step sent {before} bytes before, this one {report.bytes_sent}"
            if before
            else ""
        )
        if report.low_rank and "low_rank" not in announced:
            announced |= {"low_rank", "no low rank"}
            self._log(
                "low_rank",
                f"step {steps}: from now on gradients travel as factors of low rank "
                f"{report.low_rank}{instead}",
                logging.WARNING,
            )
        if report.phase in _PHASES and report.phase not in announced:
            announced |= {report.phase, "never"}
            what = _PHASES[report.phase]
            if self._sync_every:
                announced |= set(_PHASES)
                what = f"what up to {self._sync_every} local steps have changed"
            self._log(
                report.phase,
                f"step {steps}: from now on ranks exchange {what}{instead}",
                logging.WARNING,
            )
        elif planned is not None and steps >= _PATIENCE and "never" not in announced:
            when = (
                "when the variance has settled, at step 100000 at the latest"
                if planned == _core.AUTO_FREEZE
                else f"after step {planned}"
            )
            self._warn_of_run(
                "never",
                f"{steps} steps were exact, so no bytes were saved: compression begins "
                f"{when}. Give total_steps, and it begins after a fifth of the run",
            )

    def loaded(self, notes: list[str]) -> None:
        if self._comm.rank == 0:
            for note in notes:
                _log.logger.info("%s", note)

    def skipped(
        self,
        report: StepReport,
        steps: int,
        skipped: int,
        loss_scale: float | None = None,
    ) -> None:
        """Notes that step number steps + 1 was left out, with `skipped` left out so
        far. Only the 1st, 2nd, 4th, 8th ... gives a line. `loss_scale` is that of the
        next step, if known.
        """
        if skipped & (skipped - 1):
            return
        where = (
            f" on rank {report.nonfinite_rank}" if report.nonfinite_rank >= 0 else ""
        )
        scales = (
            ""
            if report.loss_scale == 1
            else f"; the loss scale was {report.loss_scale:g}"
        )
        if scales and loss_scale is not None:
            scales += f" and is {loss_scale:g} now"
        self._log(
            f"skipped {skipped}",
            f"the step after {steps} was skipped on all ranks, {skipped} so far: a gradient "
            f"was not finite{where}{scales}",
        )

    def of_deepspeed(self, names: list[str]) -> None:
        if names:
            self._log(
                "deepspeed",
                f"{', '.join(names)}: accepted for DeepSpeed's scripts; ranks exchange over "
                f"{self._comm.backend}",
            )

    def unsaved(self, text: str) -> None:
        self._log("unsaved", text, logging.WARNING)

    def warn(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            _log.warn(text)

    def _warn_of_run(self, key: str, text: str) -> None:
        self.run.announced.add(key)
        if self._comm.rank == 0:
            self.warn(key, text)

    def _log(self, key: str, text: str, level: int = logging.INFO) -> None:
        if key not in self._said and self._comm.rank == 0:
            self._said.add(key)
            _log.logger.log(level, "%s", text)

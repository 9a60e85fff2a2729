# SPDX-License-Identifier: Apache-2.0
"""What an optimizer says, each of it once."""

from __future__ import annotations

import warnings

from .. import _core, _log
from ..report import StepReport

_PHASES = {
    "compressed": "momentum in one bit per element",
    "local": "nothing in most steps, and one bit per element in some",
}


class Notices:
    """Lines of the logger "thinwire", on rank 0, and warnings of Python."""

    def __init__(self, comm: _core.Communicator) -> None:
        self._comm = comm
        self._said: set[str] = set()

    def after_step(self, report: StepReport, steps: int) -> None:
        """Says what is new: compression begins, a step is skipped, gradients are equal."""
        _log.forward(self._comm)
        if report.phase in _PHASES and self._comm.size > 1:
            self._log(
                report.phase,
                f"step {steps}: from now on ranks exchange {_PHASES[report.phase]}",
            )
        if not report.applied:
            self.skipped(steps)
        if report.gradients_equal and self._comm.rank == 0:
            self.warn(
                "gradients",
                "all ranks had the same gradients, so somebody averages them already "
                "(DistributedDataParallel does): results are right, but no bytes are "
                "saved. Call thinwire.local_gradients(ddp), or attach() of "
                "thinwire.integrations",
            )

    def skipped(self, steps: int) -> None:
        """The step that would have been steps + 1 was left out."""
        self._log(
            "skipped",
            f"the step after {steps} was skipped on all ranks: a gradient was not "
            "finite. Said once; optimizer.report tells of every step",
        )

    def warn(self, key: str, text: str) -> None:
        """A warning of Python's, once for each key."""
        if key not in self._said:
            self._said.add(key)
            warnings.warn(text, stacklevel=5)

    def _log(self, key: str, text: str) -> None:
        if key not in self._said and self._comm.rank == 0:
            self._said.add(key)
            _log.logger.info("%s", text)

# SPDX-License-Identifier: Apache-2.0
"""Results of one step of an Engine."""

from __future__ import annotations

from dataclasses import dataclass

from ..report import StepReport


@dataclass(frozen=True)
class EngineReport(StepReport):
    """Results of Engine.step(): the optimizer's report, and what led to it."""

    at_boundary: bool
    """Whether the step is at a boundary. If not, the window of accumulation continues,
    and nothing was updated.
    """
    steps: int
    """Applied steps so far, including this one."""
    learning_rate: float
    """Rate of group 0 in this step."""
    backward_seconds: float
    """Time of computing gradients since the window's first backward."""
    late_elements: int
    """Elements whose average began only after backward."""
    waited_for: str
    """Parameter that delayed them; empty if there is none."""

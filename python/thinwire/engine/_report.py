# SPDX-License-Identifier: Apache-2.0
"""Results of one step of an Engine."""

from __future__ import annotations

from dataclasses import dataclass

from ..report import StepReport


@dataclass(frozen=True)
class EngineReport(StepReport):
    """Results of Engine.step(): the optimizer's report, and what led to it."""

    at_boundary: bool
    """False: the window of accumulation goes on, and nothing was updated."""
    steps: int
    """Applied so far, this one included."""
    learning_rate: float
    """Of group 0, in this step."""
    backward_seconds: float
    """Since the first backward of the window: computing gradients."""
    late_elements: int
    """Elements whose average began only after backward had ended."""
    waited_for: str
    """The parameter that held them up; empty: none."""

# SPDX-License-Identifier: Apache-2.0
"""The intervals of 0/1 Adam: docs/algorithms/zero-one-adam.md, "Schedule"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Schedule:
    """When the variance moves, and when ranks sync."""

    own: Any
    var_interval: int = 1
    var_counter: int = 0
    local_interval: int = 1
    local_counter: int = 0

    def variance_updated(self) -> None:
        self.var_counter += 1
        if self.var_counter >= self.own.var_update_scaler:
            self.var_counter = 0
            self.var_interval *= 2

    def local_step_taken(self) -> None:
        self.local_counter += 1
        if self.local_counter >= self.own.local_step_scaler:
            self.local_counter = 0
            self.local_interval = min(
                self.own.local_step_clipper, 2 * self.local_interval
            )

    def describe(self) -> str:
        return (
            f"var_interval {self.var_interval} var_counter {self.var_counter} "
            f"local_step_interval {self.local_interval} local_step_counter {self.local_counter}"
        )

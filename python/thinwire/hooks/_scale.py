# SPDX-License-Identifier: Apache-2.0
"""The loss scale of the gradients, which residuals must not contain."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Protocol

_WINDOW = 4
_SPREAD = 0.25
_NEAR = 0.05


class Scaler(Protocol):
    """A torch.amp.GradScaler, or an object with these two of its members."""

    def get_scale(self) -> Any: ...
    def is_enabled(self) -> bool: ...


class Jumps:
    """Finds that the norm of gradients has jumped by a power of two and stays there. A
    change of a loss scale does that.
    """

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=2 * _WINDOW)

    def has_jumped(self, norm: float) -> bool:
        """Takes the norm of one more backward. Returns whether the last four norms lie
        a power of two from the four before. Both groups must be steady.
        """
        if not 0 < norm < math.inf:
            return False
        self._logs.append(math.log2(norm))
        logs = list(self._logs)
        before, after = logs[:_WINDOW], logs[_WINDOW:]
        if len(after) < _WINDOW:
            return False
        if any(max(part) - min(part) > _SPREAD for part in (before, after)):
            return False
        factor = (sum(after) - sum(before)) / _WINDOW
        return round(factor) != 0 and abs(factor - round(factor)) < _NEAR

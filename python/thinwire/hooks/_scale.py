# SPDX-License-Identifier: Apache-2.0
"""The loss scale of the gradients, which residuals must not contain."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NoReturn, Protocol

from ..errors import InvalidArgument

_WINDOW = 4
_SPREAD = 0.25
_NEAR = 0.05
# The exchange multiplies by the scale and by its inverse, in fp32.
_LEAST, _MOST = 2.0**-126, 2.0**127


class Scaler(Protocol):
    """A torch.amp.GradScaler, or an object that has these two methods."""

    def get_scale(self) -> Any: ...
    def is_enabled(self) -> bool: ...


class ScaledHook:
    """A hook that knows the loss scale, which the program or a scaler sets."""

    _scaler: Scaler | None = None
    _loss_scale = 1.0
    _is_told = False
    """Whether the program has set the source of the scale."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled, because it exchanges "
            "with other ranks: save its state_dict()"
        )

    def set_loss_scale(self, scale: float) -> None:
        """Sets the factor that the loss has been multiplied by, from the next backward
        on. All ranks must set the same factor; ddp_hook() compares the factors in
        backwards 1, 2, 4, 8 and so on. Local.

        Raises InvalidArgument unless the factor is in [2^-126, 2^127].
        """
        if not isinstance(scale, float | int) or not _LEAST <= scale <= _MOST:
            raise InvalidArgument(f"scale must be in [2^-126, 2^127], got {scale!r}")
        self._scaler, self._loss_scale, self._is_told = None, float(scale), True

    def watch(self, grad_scaler: Scaler) -> None:
        """Uses this scaler's loss scale in each backward. Local.

        Raises InvalidArgument unless the scaler has get_scale() and is_enabled().
        """
        if not all(
            callable(getattr(grad_scaler, name, None))
            for name in ("get_scale", "is_enabled")
        ):
            raise InvalidArgument(
                "grad_scaler must have get_scale() and is_enabled(), got "
                f"{type(grad_scaler).__name__}"
            )
        self._scaler, self._loss_scale, self._is_told = grad_scaler, 1.0, True

    def _scale_now(self) -> float:
        if self._scaler is not None and self._scaler.is_enabled():
            scale = float(self._scaler.get_scale())
            if not _LEAST <= scale <= _MOST:
                raise InvalidArgument(
                    "get_scale() of the hook's grad_scaler must return a number in "
                    f"[2^-126, 2^127], got {scale:g}"
                )
            return scale
        return self._loss_scale


class Jumps:
    """Detects that the norm of gradients has changed by a power of two and kept the new
    level."""

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=2 * _WINDOW)

    def has_jumped(self, norm: float) -> bool:
        """Adds a norm. Returns whether the last four norms differ from the previous
        four by a power of two.
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

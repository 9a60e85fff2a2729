# SPDX-License-Identifier: Apache-2.0
"""optimizer.state[p]: the state of a parameter, as torch's optimizers show it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ._torch_state import MOMENTS


class ParameterState(dict[str, Any]):
    """State of a parameter; every access copies a moment to the CPU, in fp32."""

    def __init__(
        self,
        step: torch.Tensor,
        moment: Callable[[int, str], torch.Tensor | None],
        number: int,
    ) -> None:
        """`moment` is a method of the optimizer, which may return None."""
        super().__init__(step=step)
        self._moment, self._number = weakref.WeakMethod(moment), number

    def _read(self, key: str) -> torch.Tensor | None:
        moment = self._moment()
        return None if moment is None else moment(self._number, key)

    def __missing__(self, key: str) -> torch.Tensor:
        value = self._read(key) if key in MOMENTS else None
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (
            key in MOMENTS and self._read(str(key)) is not None
        )

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

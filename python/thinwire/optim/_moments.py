# SPDX-License-Identifier: Apache-2.0
"""optimizer.state[p]: the state of a parameter, as torch's optimizers show it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ._torch_state import MOMENTS


class ParameterState(dict[str, Any]):
    """State of a parameter: `step`, and exp_avg and exp_avg_sq if the present stage has
    them. Every access copies them to the CPU, in fp32 and in the parameter's shape, so
    writing into them has no effect. Local.
    """

    def __init__(
        self,
        step: torch.Tensor,
        moment: Callable[[int, str], torch.Tensor | None],
        number: int,
    ) -> None:
        """`moment` is a method of the optimizer. It returns a moment of the parameter of
        a number, or None unless every rank has all of it.
        """
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

# SPDX-License-Identifier: Apache-2.0
"""optimizer.state[p]: the state of a parameter, as torch's optimizers show it."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch

from ._torch_state import MOMENTS


class Owner(Protocol):
    """An optimizer whose state it is."""

    def _moment(self, number: int, key: str) -> torch.Tensor | None:
        """Returns a moment of the parameter of this number, or None unless every rank
        has all of it.
        """


class ParameterState(dict[str, Any]):
    """State of a parameter: `step`, and exp_avg and exp_avg_sq if the present stage has
    them. Every access copies them to the CPU, in fp32 and in the parameter's shape, so
    writing into them has no effect. Local.
    """

    def __init__(self, step: torch.Tensor, owner: Owner, number: int) -> None:
        super().__init__(step=step)
        self._owner, self._number = weakref.ref(owner), number

    def _read(self, key: str) -> torch.Tensor | None:
        owner = self._owner()
        return None if owner is None else owner._moment(self._number, key)

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

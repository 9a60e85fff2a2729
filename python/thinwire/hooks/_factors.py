# SPDX-License-Identifier: Apache-2.0
"""The factors of a low-rank average by parameter name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from .. import _core
from ..errors import CorruptCheckpoint
from . import _state

PARTS = ("factors", "generators", "first_passes")
# Columns of Q have magnitudes of at most 1.
_MOST = 2.0


def matrix_of(shape: torch.Size) -> tuple[int, int]:
    """Returns rows and columns of a parameter: its first dimension, and the product of
    the others.
    """
    return (shape[0], shape[1:].numel()) if len(shape) > 1 else (shape.numel(), 1)


def matrices_of(shapes: _state.Shapes, plain: Iterable[str]) -> list[tuple[int, int]]:
    """Returns the matrices of all parameters. Parameters that match `plain` become
    columns."""
    patterns = tuple(plain)
    return [
        (shape.numel(), 1)
        if any(fnmatchcase(name, pattern) for pattern in patterns)
        else matrix_of(shape)
        for name, shape in shapes.items()
    ]


@dataclass
class Kept:
    """Factors of all parameters in one array, the generators' states, and the number of
    passes.
    """

    factors: torch.Tensor
    generators: list[int]
    passes: int

    def __str__(self) -> str:
        """Returns a text that is equal on all ranks if these values are equal."""
        return (
            f"first_passes {self.passes}\n"
            f"factors, checksum {_state.checksum(self.factors)}\n"
            f"generators {self.generators}\n"
        )


class Factors:
    """The factors Q and the generators of a LowRankMean in the states of a hook."""

    def __init__(
        self,
        mean: _core.LowRankMean,
        names: Iterable[str],
        matrices: Iterable[tuple[int, int]],
        low_rank: int,
    ) -> None:
        self._mean = mean
        self._low_rank = low_rank
        self._shapes: dict[str, torch.Size] = {}
        for name, matrix in zip(names, matrices, strict=True):
            rank = _core.rank_of(matrix, low_rank)
            if rank > 0:
                self._shapes[name] = torch.Size((rank, matrix[1]))
        self._first = Kept(from_dlpack(mean.factors()), mean.generators(), 0)

    def saved(self) -> dict[str, Any]:
        """Returns the parts of a state. Local; the same on all ranks."""
        parts = from_dlpack(self._mean.factors()).split(
            [shape.numel() for shape in self._shapes.values()]
        )
        return {
            "factors": {
                name: part.view(shape)
                for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
            },
            "generators": {
                # Tensors have no operations on uint64.
                name: torch.tensor(number - 2**64 if number >= 2**63 else number)
                for name, number in zip(
                    self._shapes, self._mean.generators(), strict=True
                )
            },
            "first_passes": torch.tensor(self._mean.passes),
        }

    def checked(self, state: Mapping[str, Any]) -> Kept:
        """Returns the state's factors, or the initial factors if the state contains
        none. Local.

        Raises CorruptCheckpoint naming what does not fit.
        """
        if not any(part in state for part in PARTS):
            return self._first
        try:
            _state.check_names(state, "factors", self._shapes, "the factors of ddp")
        except CorruptCheckpoint as error:
            raise CorruptCheckpoint(
                f"{error}{self._advice(state.get('factors'))}"
            ) from None
        flat = [state["factors"][name].flatten() for name in self._shapes]
        factors = torch.cat([torch.empty(0), *flat]).float().cpu()
        _state.require_finite(factors, "factors", _MOST)
        given = state.get("generators")
        if not isinstance(given, Mapping) or given.keys() != self._shapes.keys():
            raise CorruptCheckpoint(
                "the state's 'generators' must have the names of its 'factors', got "
                f"{given!r:.60}"
            )
        generators = [
            _state.integer(
                f"'{name}' in the state's 'generators'", given[name], -(2**63)
            )
            % 2**64
            for name in self._shapes
        ]
        passes = _state.integer("the state's 'first_passes'", state.get("first_passes"))
        return Kept(factors, generators, passes)

    def _advice(self, given: Any) -> str:
        """Returns advice in case the state's factors come from other options."""
        if not isinstance(given, Mapping) or not all(
            isinstance(factor, torch.Tensor) and factor.dim() == 2
            for factor in given.values()
        ):
            return ""
        names = (
            "low_rank" if given.keys() == self._shapes.keys() else "low_rank or plain"
        )
        return (
            f". If the state is of another {names} (this hook has low_rank="
            f"{self._low_rank}), remove {', '.join(PARTS[:-1])} and {PARTS[-1]} from it: "
            "factors then begin anew"
        )

    def load(self, worker: torch.Tensor, server: torch.Tensor, kept: Kept) -> None:
        self._mean.load(worker, server, kept.factors, kept.generators, kept.passes)

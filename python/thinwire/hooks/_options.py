# SPDX-License-Identifier: Apache-2.0
"""Options of ddp_hook()."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch

from .. import _core
from ..errors import InvalidArgument
from ._parameters import require_bits, require_options
from ._path import require_path

FIRST_STEPS, FIRST_BITS = 20, 4
_BITS = "THINWIRE_BITS"


def bits_of_environment() -> int | None:
    """Returns THINWIRE_BITS, or None if it is not set. Local.

    Raises InvalidArgument unless the value is 4 or 8.
    """
    text = os.environ.get(_BITS, "")
    if text not in ("", "4", "8"):
        raise InvalidArgument(f'{_BITS} must be 4 or 8, got "{text}"')
    return int(text) if text else None


def from_environment(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options of ddp_hook(), with THINWIRE_BITS if they contain neither `bits`
    nor `low_rank`. Local. Raises InvalidArgument like bits_of_environment().
    """
    if options.get("bits") is not None or options.get("low_rank"):
        return dict(options)
    return {**options, "bits": bits_of_environment()}


@dataclass(frozen=True)
class Options:
    """The options that ddp_hook() documents."""

    bits: int | None = None
    low_rank: int = 0
    first_steps: int = FIRST_STEPS
    first_bits: int = FIRST_BITS
    plain: Iterable[str] = ()
    exact_steps: int = 0
    residual_dtype: torch.dtype = torch.float32
    hierarchy: str = "auto"
    path: str = "auto"

    def checked(self, names: Iterable[str]) -> Options:
        """Returns the options with the default of `bits` filled in and `plain` as a
        tuple. `names` are the names of the averaged parameters. Local.

        Raises InvalidArgument for an option out of range.
        """
        if type(self.low_rank) is not int or not 0 <= self.low_rank <= 64:
            raise InvalidArgument(
                f"low_rank must be in [1, 64], or 0, got {self.low_rank!r}"
            )
        if type(self.exact_steps) is not int or self.exact_steps < 0:
            raise InvalidArgument(f"exact_steps must be >= 0, got {self.exact_steps!r}")
        known = _core.Hierarchy.__members__
        if not isinstance(self.hierarchy, str) or self.hierarchy not in known:
            raise InvalidArgument(
                f"hierarchy must be auto, flat or by_host, got {self.hierarchy!r}"
            )
        require_path(self.path)
        if self.low_rank > 0:
            self._require_low_rank()
            return replace(self, plain=self._found(names))
        bits = 4 if self.bits is None else self.bits
        require_options(bits, self.residual_dtype)
        for name, default in (
            ("first_steps", FIRST_STEPS),
            ("first_bits", FIRST_BITS),
            ("plain", ()),
        ):
            if getattr(self, name) != default:
                raise InvalidArgument(
                    f"{name} must be left out without low_rank, got "
                    f"{getattr(self, name)!r}"
                )
        return replace(self, bits=bits)

    def _require_low_rank(self) -> None:
        if self.bits is not None:
            raise InvalidArgument(
                f"bits must be left out with low_rank, got bits={self.bits!r} and "
                f"low_rank={self.low_rank}"
            )
        if type(self.first_steps) is not int or not 0 <= self.first_steps < 2**63:
            raise InvalidArgument(
                f"first_steps must be in [0, 2^63), got {self.first_steps!r}"
            )
        require_bits("first_bits", self.first_bits)
        if self.residual_dtype != torch.float32:
            raise InvalidArgument(
                f"residual_dtype must be float32 with low_rank, got {self.residual_dtype}"
            )
        if self.path == "device":
            raise InvalidArgument(
                "path must be auto or host with low_rank, whose factors are averaged in "
                "host memory, got device"
            )

    def _found(self, names: Iterable[str]) -> tuple[str, ...]:
        """Returns `plain` as a tuple. Raises InvalidArgument for a pattern that matches
        no name.
        """
        if isinstance(self.plain, str) or not isinstance(self.plain, Iterable):
            raise InvalidArgument(f"plain must be names, got {self.plain!r}")
        plain, known = tuple(self.plain), list(names)
        for pattern in plain:
            if not isinstance(pattern, str) or not any(
                fnmatchcase(name, pattern) for name in known
            ):
                raise InvalidArgument(
                    "plain must match names of parameters that ddp averages, such as "
                    f"'{known[0]}', got {pattern!r}, which matches none"
                )
        return plain

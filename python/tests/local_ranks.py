# SPDX-License-Identifier: Apache-2.0
"""A test as what every rank does; ranks are threads."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from thinwire.comm import run_local_ranks


def by_ranks(ranks: int | str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs a test on so many ranks, or on as many as the parameter of this name says.

    @by_ranks(2)
    def test_that_ranks_are_numbered(comm: Any, tmp_path: Path) -> None:
        assert comm.rank in (0, 1)

    pytest gives each argument after the first, the rank's communicator, to all ranks.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            n = fixtures[ranks] if isinstance(ranks, str) else ranks
            run_local_ranks(n, lambda comm: test(comm, **fixtures))

        _, *others = inspect.signature(test).parameters.values()
        run.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        return run

    return decorate

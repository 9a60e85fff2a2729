# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of this process, for notebooks and tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from .. import _core
from ..errors import InvalidArgument
from .duration import timeout_of
from .lifetime import reason_of

T = TypeVar("T")
_generator = threading.RLock()


def run_local_ranks(n: int, fn: Callable[[_core.Communicator], T]) -> list[T]:
    """Runs fn(communicator) on n threads, one per rank. Returns the results in rank
    order.

    Optimizers and initialize() accept the communicator as process_group. Every rank
    makes its own model, inside `with seeded(...)` if it is random. If a rank raises,
    the others are notified, and run_local_ranks() raises the exception. A rank that
    exchanges with a rank whose `fn` has returned raises CommFailure, which names that
    rank. One collective may take THINWIRE_TIMEOUT, or 600 s if this variable is unset.
    """
    if not isinstance(n, int) or n < 1:
        raise InvalidArgument(f"n must be a number of ranks >= 1, got {n!r}")
    group = _core.local_group(n, timeout_of(None))
    results: dict[int, T] = {}
    failures: list[BaseException] = []  # the first caused the others

    def run(communicator: _core.Communicator) -> None:
        rank = communicator.rank
        try:
            results[rank] = fn(communicator)
        except BaseException as error:  # noqa: BLE001  raised again below
            error.add_note(f"on rank {rank} of run_local_ranks()")
            failures.append(error)
            _give_up(communicator, reason_of(error))
        else:
            _give_up(communicator, "its function has returned, and makes no more calls")

    threads = [
        threading.Thread(target=run, args=(communicator,), name=f"thinwire rank {rank}")
        for rank, communicator in enumerate(group)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C
        for communicator in group:
            _give_up(communicator, reason_of(error))
        raise
    finally:
        for communicator in group:
            communicator.close()
    if failures:
        raise failures[0]
    return [results[rank] for rank in range(n)]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's CPU generator within `with seeded(1): model = ...`. Local.

    Only one thread at a time can be in such a block. Afterwards the generator's
    previous state is restored. Ranks of run_local_ranks() share the generator. Without
    this block, ranks would draw numbers in an order that changes from run to run.
    """
    with _generator, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _give_up(communicator: _core.Communicator, reason: str) -> None:
    if not communicator.closed:
        communicator.give_up(reason)

# SPDX-License-Identifier: Apache-2.0
"""Errors that reach all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from . import _core
from .comm.calls import different, name_of_call
from .comm.lifetime import reason_of
from .errors import CommFailure, InvalidArgument

T = TypeVar("T")


def agreed(comm: _core.Communicator, body: Callable[[], T]) -> T:
    """Runs body(), which is local, on every rank. Collective. If it raises on one rank,
    all raise, so that none waits for another. The others raise InvalidArgument with its
    text. Raises CommFailure on all ranks if they are in different calls.
    """
    refusal: Exception | None = None
    results: list[T] = []
    try:
        results.append(body())
    except Exception as error:  # noqa: BLE001  other ranks must not wait after any error
        refusal = error
    told = "" if refusal is None else reason_of(refusal)
    both = [t.split("\n", 1) for t in comm.gather_texts(f"{name_of_call()}\n{told}")]
    calls, texts = [list(part) for part in zip(*both, strict=True)]
    other = next((r for r, call in enumerate(calls) if call != calls[0]), None)
    if other is not None:
        raise CommFailure(different({0: calls[0], other: calls[other]}))
    if refusal is not None:
        raise refusal
    for rank, text in enumerate(texts):
        if text:
            raise InvalidArgument(f"rank {rank} refused its arguments: {text}")
    return results[0]


@contextmanager
def telling_others(comms: Iterable[_core.Communicator], call: str) -> Iterator[None]:
    """Runs the local part of `call`, for which other ranks may wait in an exchange
    already. If it raises, this rank gives up: the others raise CommFailure with its
    text, and `comms` may only be closed. Local, no exchange.
    """
    try:
        yield
    except Exception as error:
        for comm in comms:
            if not comm.closed:
                comm.give_up(f"{call}: {reason_of(error)}")
        raise

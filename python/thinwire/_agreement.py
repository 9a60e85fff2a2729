# SPDX-License-Identifier: Apache-2.0
"""Functions that raise the error of one rank on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from . import _core
from .comm.calls import different, name_of_call
from .comm.lifetime import reason_of
from .errors import CommFailure, InvalidArgument

T = TypeVar("T")

_MARK = "\0call "
"""Prefix of texts from gathered(), which distinguishes them from texts of a bare
gather_texts().
"""


def gathered(comm: _core.Communicator, text: str) -> list[str]:
    """Returns the texts of all ranks. Collective. Raises CommFailure on all ranks if they
    are in different calls.
    """
    calls, texts = [], []
    for told in comm.gather_texts(f"{_MARK}{name_of_call()}\n{text}"):
        call, newline, rest = told.partition("\n")
        is_ours = newline and call.startswith(_MARK)
        calls.append(call if is_ours else "another call")
        texts.append(rest)
    other = next((r for r, call in enumerate(calls) if call != calls[0]), None)
    if other is None:
        return texts
    reason = different({r: calls[r].removeprefix(_MARK) for r in (0, other)})
    comm.give_up(reason)  # a bare gather_texts() does not notice it
    raise CommFailure(reason)


def agreed(comm: _core.Communicator | None, body: Callable[[], T]) -> T:
    """Runs body(), which is local, on every rank. Collective. If body() raises on one
    rank, the others raise InvalidArgument with the error's text, so that no rank waits
    for another. Raises CommFailure on all ranks if they are in different calls. Without
    `comm`, only calls body().
    """
    if comm is None:
        return body()
    refusal: Exception | None = None
    results: list[T] = []
    try:
        results.append(body())
    except Exception as error:  # noqa: BLE001  other ranks must not wait after any error
        refusal = error
    told = "" if refusal is None else reason_of(refusal)
    texts = gathered(comm, told)
    if refusal is not None:
        raise refusal
    for rank, text in enumerate(texts):
        if text:
            raise InvalidArgument(f"rank {rank} refused its arguments: {text}")
    return results[0]


@contextmanager
def telling_others(comms: Iterable[_core.Communicator], call: str) -> Iterator[None]:
    """Runs the local part of `call`, while other ranks may already wait in the
    exchange. If this part raises, the rank gives up: the others raise CommFailure with
    the error's text, and `comms` may only be closed. Local.
    """
    try:
        yield
    except Exception as error:
        for comm in comms:
            if not comm.closed:
                comm.give_up(f"{call}: {reason_of(error)}")
        raise

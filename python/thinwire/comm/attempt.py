# SPDX-License-Identifier: Apache-2.0
"""The part of a launcher's store that belongs to one attempt of a run."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

from torch.distributed import PrefixStore, Store

from ..errors import CommFailure

_PAUSE_SECONDS = 0.01


def store_of_attempt(store: Store, rank: int, size: int, timeout: timedelta) -> Store:
    """Returns the part of `store` that the `size` ranks of this attempt share.
    Collective.

    torchrun keeps one store over all restarts of a run. Without an own part, new ranks
    would use the addresses that dead ranks have left there. TORCHELASTIC_RESTART_COUNT
    does not name an attempt: if one machine restarts because another one did, its own
    count does not change. So rank 0 chooses a name. Each rank asks for it under a name
    of its own that has not been used before, and rank 0 answers.

    Raises CommFailure naming the ranks that do not arrive within `timeout`.
    """
    own = uuid.uuid4().hex
    attempt = _answer(store, own, size, timeout) if rank == 0 else own
    if rank > 0:
        attempt = _ask(store, own, rank, timeout)
    return PrefixStore(f"thinwire/attempt/{attempt}/", store)


def _ask(store: Store, own: str, rank: int, timeout: timedelta) -> str:
    store.set(f"thinwire/here/{rank}", own)
    try:
        store.wait([f"thinwire/answer/{own}"], timeout)
    except RuntimeError as error:
        first = next(iter(str(error).splitlines()), "")
        raise CommFailure(f"init_distributed: no answer from rank 0: {first}") from None
    attempt = store.get(f"thinwire/answer/{own}").decode()
    store.set(f"thinwire/joined/{attempt}/{rank}", "")
    return attempt


def _answer(store: Store, attempt: str, size: int, timeout: timedelta) -> str:
    """Answers the other ranks until each has its answer; dead ones do no harm."""
    end = time.monotonic() + timeout.total_seconds()
    answered: set[bytes] = set()
    while late := [
        rank
        for rank in range(1, size)
        if not store.check([f"thinwire/joined/{attempt}/{rank}"])
    ]:
        if time.monotonic() > end:
            names = ", ".join(map(str, late))
            raise CommFailure(
                f"init_distributed: timed out waiting for rank{'s' if len(late) > 1 else ''} {names}"
            )
        for rank in late:
            if store.check([f"thinwire/here/{rank}"]):
                name = store.get(f"thinwire/here/{rank}")
                if name not in answered:
                    store.set(f"thinwire/answer/{name.decode()}", attempt)
                    answered.add(name)
        time.sleep(_PAUSE_SECONDS)
    return attempt

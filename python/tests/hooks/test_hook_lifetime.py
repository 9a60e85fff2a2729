# SPDX-License-Identifier: Apache-2.0
"""thinwire.ddp_hook: its thread ends with the wrapper, and not in a forked child."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any

import hook_cases as cases
import pytest
import ranks
import thinwire


def exchanging() -> int:
    return sum(thread.name == "thinwire.hook" for thread in threading.enumerate())


def lives() -> dict[str, Any]:
    rank, _ = cases.join()
    ddp = cases.wrapped(cases.net())
    hook = thinwire.ddp_hook(ddp)
    cases.loss_of(ddp, rank, 0).backward()
    found: dict[str, Any] = {"alive": exchanging()}
    child = os.fork()
    if child == 0:
        try:
            hook.state_dict()
        except thinwire.FailedPrecondition as error:
            os._exit(7 if "has forked" in str(error) else 1)
        os._exit(2)
    found["child"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    cases.loss_of(ddp, rank, 1).backward()
    del ddp, hook
    gc.collect()
    end = time.monotonic() + 10
    while exchanging() and time.monotonic() < end:
        time.sleep(0.01)
    found["after"] = exchanging()
    # The parameters are free for an optimizer, or another hook, of a new wrapper.
    net = cases.net()
    thinwire.ddp_hook(cases.wrapped(net)).close()
    thinwire.OnebitAdam(net.parameters()).close()
    for exact_steps in (0, 5):
        closed = cases.wrapped(cases.net())
        thinwire.ddp_hook(closed, exact_steps=exact_steps).close()
        with pytest.raises(thinwire.FailedPrecondition, match="is closed"):
            cases.loss_of(closed, rank, 2).backward()
    return found


@pytest.mark.parametrize("world", [1, 2])
def test_the_thread_ends_with_the_wrapper(world: int) -> None:
    for found in ranks.results(world, __file__, "lives"):
        assert found == {"alive": 1, "child": 7, "after": 0}

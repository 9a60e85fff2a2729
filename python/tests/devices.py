# SPDX-License-Identifier: Apache-2.0
"""The device that tests of devices run on, in processes of its own.

THINWIRE_TEST_DEVICE names it: "fence", which CI has, or "cuda", "npu", "xpu" and the like on
a machine that has one. Counters and checks for races are fence's alone.
"""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path
from typing import Any

import ranks
import torch

NAME = os.environ.get("THINWIRE_TEST_DEVICE", "fence")
IS_FENCE = NAME == "fence"
_FENCE = Path(__file__).resolve().parents[2] / "build/release/tests/fence_device.so"


def require() -> None:
    """Skips the test where the device is not there; THINWIRE_REQUIRE=device fails it."""
    if IS_FENCE:
        there, why = (
            _FENCE.exists() or "THINWIRE_FENCE" in os.environ,
            "build the target fence",
        )
    else:
        there, why = torch.accelerator.is_available(), f"torch finds no {NAME}"
    ranks.require("device", there, why)


def run(
    n: int, file: str, name: str, *arguments: object, seconds: float = 110, **env: str
) -> list[Any]:
    """The results of the function `name` of `file` on n ranks, each a process."""
    require()
    found: list[Any] = ranks.results(
        n, file, name, *arguments, seconds=seconds, env=env
    )
    return found


def device(rank: int = 0) -> torch.device:
    """In a process of run(): the one of this rank."""
    if IS_FENCE:
        import fence  # noqa: F401  it registers itself
    if NAME == "cuda":
        # NCCL wants a device for each rank of a host, so each says that its host is another.
        os.environ["NCCL_HOSTID"] = os.environ.get("RANK", "0")
        torch.backends.cudnn.allow_tf32 = False  # the CPU has no such format
    return torch.device(NAME, rank % torch.accelerator.device_count())


def begin(where: str) -> torch.device:
    """Joins a process group for the CPU or also for the device. Returns the place, which is
    the CPU if `where` says so, else the device."""
    import thinwire

    place = torch.device("cpu") if where == "cpu" else device()
    backend = "gloo" if where == "cpu" else backends()
    thinwire.init_distributed(backend, verbose=False)
    return place


def told(level: int = logging.WARNING) -> list[str]:
    """Returns the list of lines that thinwire logs from now on."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("thinwire").addHandler(handler)
    logging.getLogger("thinwire").setLevel(level)
    return lines


def backends() -> str:
    """Of a process group for tensors of the CPU and of the device."""
    own = "fence_ccl" if IS_FENCE else None
    return f"cpu:gloo,{NAME}:{own or torch.distributed.get_default_backend_for_device(NAME)}"


def counts() -> dict[str, int]:
    """fence.counts(); of other devices nothing."""
    if not IS_FENCE:
        return {}
    import fence

    return fence.counts()


def alike(a: Any, b: Any) -> bool:
    """Whether two nested lists of numbers are equal, or on other devices than fence, whose sums
    are not the CPU's, nearly so."""
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    return a == b or (not IS_FENCE and math.isclose(a, b, rel_tol=1e-2, abs_tol=1e-2))

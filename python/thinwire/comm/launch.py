# SPDX-License-Identifier: Apache-2.0
"""Initialization of torch.distributed from a launcher's variables, with DeepSpeed's
arguments."""

from __future__ import annotations

import datetime
import os
import time
import uuid
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from .._log import logger
from ..errors import CommFailure, FailedPrecondition
from .duration import timeout_of


def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = 29500,
    verbose: bool = True,
    timeout: datetime.timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """Initializes torch.distributed unless it is initialized already. Collective.

    Ranks come from torchrun's variables, or from mpirun's if `auto_mpi_discovery`.
    Without a launcher this process is a world of one. Ranks that torchrun has restarted
    (`--max-restarts`) ignore data that the previous attempt has left in the store.
    torch's own init_process_group() can hang in this case.

    dist_backend: None lets torch choose by device.
    timeout: limit of the start, and of torch's own collectives. None means
      THINWIRE_TIMEOUT or, if this variable is unset, torch's own limit.
    dist_init_required: False rejects initialization.
    config: accepted for DeepSpeed's scripts, but ignored.

    Raises FailedPrecondition naming the variable that is missing, and InvalidArgument
    if THINWIRE_TIMEOUT is not a duration. Raises CommFailure naming the ranks that do
    not arrive within `timeout`.
    """
    if dist.is_initialized():
        return
    if dist_init_required is False:
        raise FailedPrecondition(
            "dist_init_required=False, but torch.distributed has not been initialized: call "
            "torch.distributed.init_process_group() first"
        )
    if auto_mpi_discovery and init_method is None:
        _discover_mpi(distributed_port)
    if timeout is None and os.environ.get("THINWIRE_TIMEOUT"):
        timeout = datetime.timedelta(seconds=timeout_of(None))
    arguments: dict[str, Any] = {"backend": dist_backend, "timeout": timeout}
    if init_method is not None or rank >= 0 or world_size >= 0:
        arguments |= {
            "init_method": init_method,
            "rank": rank,
            "world_size": world_size,
        }
    elif "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        arguments |= {"store": HashStore(), "rank": 0, "world_size": 1}
    else:
        os.environ.setdefault("MASTER_PORT", str(distributed_port))
        _require("RANK", "WORLD_SIZE", "MASTER_ADDR")
        if dist_backend != "mpi":  # "mpi" has no store
            arguments |= _of_this_attempt(timeout or dist.default_pg_timeout)
    dist.init_process_group(**arguments)
    if verbose and dist.get_rank() == 0:
        backend = dist.get_backend()  # "undefined": one for each kind
        logger.info(
            "torch.distributed: %s, %d ranks",
            "default backends" if backend in ("", "undefined") else backend,
            dist.get_world_size(),
        )


def _of_this_attempt(timeout: datetime.timedelta) -> dict[str, Any]:
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    store.set_timeout(timeout)
    own = store_of_attempt(store, rank, size, timeout)
    return {"store": own, "rank": rank, "world_size": size}


def _discover_mpi(port: int) -> None:
    """Sets torchrun's variables, which scripts read, from Open MPI or MPICH variables."""
    if "RANK" in os.environ:
        return
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
    size = os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ.get("PMI_SIZE"))
    if rank is None or size is None:
        return
    local_size = os.environ.get(
        "OMPI_COMM_WORLD_LOCAL_SIZE", os.environ.get("MPI_LOCALNRANKS")
    )
    local_rank = os.environ.get(
        "OMPI_COMM_WORLD_LOCAL_RANK", os.environ.get("MPI_LOCALRANKID")
    )
    if "MASTER_ADDR" not in os.environ:
        if local_size != size:
            raise FailedPrecondition(
                "MASTER_ADDR is not set: start with mpirun -x MASTER_ADDR=<host of rank 0>"
            )
        os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ.setdefault("MASTER_PORT", str(port))
    os.environ |= {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local_rank or "0"}


def _require(*names: str) -> None:
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise FailedPrecondition(
            f"{', '.join(missing)} not set: start with torchrun, which sets RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT"
        )


_PAUSE_SECONDS = 0.01


def store_of_attempt(store: Store, rank: int, size: int, timeout: timedelta) -> Store:
    """Returns the part of `store` that the `size` ranks of this attempt share.
    Collective.

    torchrun keeps one store over all restarts of a run. Without a separate part, new
    ranks would use the addresses that dead ranks have left in the store.
    TORCHELASTIC_RESTART_COUNT does not name an attempt: if one machine restarts because
    another one did, the first machine's count does not change. Rank 0 therefore chooses
    a name. Each rank asks for this name under a new key, and rank 0 answers.

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
    """Answers the other ranks until each has received its answer. Requests of dead
    ranks do no harm.
    """
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

# SPDX-License-Identifier: Apache-2.0
"""Converts the argument process_group to a communicator."""

from __future__ import annotations

import datetime
import os
import weakref
from typing import Any

import torch.distributed as dist

from .. import _core
from ..errors import FailedPrecondition, InvalidArgument, Unavailable
from .duration import timeout_of
from .lifetime import close_at_exit
from .mpi import Mpi4pyTransport
from .process_group import ProcessGroupTransport, member_group

_CHOICES = ("torch", "mpi4py", "mpi", "local")
_MEMBERS = ("name", "rank", "size", "exchange", "split", "give_up")
_transports: weakref.WeakKeyDictionary[
    _core.Communicator, weakref.ref[ProcessGroupTransport]
] = weakref.WeakKeyDictionary()


def communicator_for(
    process_group: Any = None,
    timeout: float | datetime.timedelta | None = None,
    backend: str | None = None,
    *,
    names_world_ranks: bool = False,
) -> _core.Communicator:
    """Returns the communicator of an optimizer or an engine. Collective over the group.

    process_group: a ProcessGroup of torch.distributed, an object with the members of
      Transport in comm/transport.py, or a _core.Communicator. A communicator is
      returned unchanged, and the caller closes it. None selects the transport that
      THINWIRE_COMM names (torch, mpi4py, mpi, local). If THINWIRE_COMM is unset, None
      selects the world of torch.distributed, or this process alone.
    backend: DeepSpeed's comm_backend_name, used if neither process_group nor
      THINWIRE_COMM is set. "mpi" selects mpi4py, and any other value has the same
      effect as None.
    timeout: limit of one collective in seconds. None means THINWIRE_TIMEOUT or, if that
      is unset, the group's time-out.
    names_world_ranks: whether errors about lost ranks use the world's numbers instead
      of those in the ProcessGroup.

    The communicator is closed at the latest when the program ends. If an exception ends
    the program, the other ranks receive its text. Waiting releases the GIL, but Ctrl-C
    takes effect only after the exchange. Over Python transports every exchange briefly
    needs the GIL, so Python code that runs without pause delays the exchange by up to
    sys.getswitchinterval().

    Raises InvalidArgument for other objects and values. Raises FailedPrecondition if a
    launcher has started several ranks, but torch.distributed is not initialized. Raises
    Unavailable and CommFailure like the transports.
    """
    if isinstance(process_group, _core.Communicator):
        return process_group
    if process_group is None:
        return _chosen(timeout, backend)
    if isinstance(process_group, dist.ProcessGroup):
        return _over_group(process_group, timeout, names_world_ranks)
    require_group(process_group)
    return close_at_exit(_core.over(process_group, timeout_of(timeout)))


def require_group(process_group: Any) -> None:
    """Raises InvalidArgument for an argument that communicator_for() does not accept.
    Local."""
    if process_group is None or isinstance(
        process_group, _core.Communicator | dist.ProcessGroup
    ):
        return
    missing = [name for name in _MEMBERS if not hasattr(process_group, name)]
    if missing:
        raise InvalidArgument(
            "process_group must be a ProcessGroup of which this rank is a member, a transport, "
            f"a communicator or None, got {type(process_group).__name__} {process_group!r:.80} "
            f"(without {', '.join(missing)})"
        )


def choice_of_backend() -> str:
    """Returns THINWIRE_COMM, or "". Raises InvalidArgument for an unknown name."""
    choice = os.environ.get("THINWIRE_COMM", "")
    if choice and choice not in _CHOICES:
        raise InvalidArgument(
            f'THINWIRE_COMM must be one of {", ".join(_CHOICES)}, got "{choice}"'
        )
    return choice


def _chosen(
    timeout: float | datetime.timedelta | None, backend: str | None
) -> _core.Communicator:
    choice = choice_of_backend()
    if not choice and backend == "mpi" and launched_ranks() > 1:
        return _named_mpi(timeout)
    if choice == "mpi4py":
        return close_at_exit(_core.over(Mpi4pyTransport(), timeout_of(timeout)))
    if choice == "mpi":
        return close_at_exit(_core.from_environment())
    is_joined = dist.is_available() and dist.is_initialized()
    if choice == "local":
        return _alone(timeout)
    if is_joined:
        return _over_group(None, timeout)
    if choice == "torch" or launched_ranks() > 1:
        raise FailedPrecondition(
            f"{launched_ranks()} ranks were started, but torch.distributed has not been "
            "initialized: call torch.distributed.init_process_group() or "
            "thinwire.init_distributed() first, or set THINWIRE_COMM=mpi4py under mpirun"
        )
    return _alone(timeout)


def _named_mpi(timeout: float | datetime.timedelta | None) -> _core.Communicator:
    try:
        transport = Mpi4pyTransport()
    except Unavailable as error:
        raise Unavailable(f"comm_backend_name 'mpi': {error}") from None
    if transport.size != launched_ranks():
        raise Unavailable(
            f"comm_backend_name 'mpi': {launched_ranks()} ranks were started, but MPI knows "
            f"{transport.size}: start with mpirun, or leave the name out"
        )
    return close_at_exit(_core.over(transport, timeout_of(timeout)))


def _over_group(
    process_group: dist.ProcessGroup | None,
    timeout: float | datetime.timedelta | None,
    names_world_ranks: bool = False,
) -> _core.Communicator:
    group = member_group(process_group)
    seconds = timeout_of(timeout, group)
    if group.size() == 1:
        return close_at_exit(_core.local_group(1, seconds)[0])
    transport = ProcessGroupTransport(group, seconds)
    if names_world_ranks:
        transport.names[:] = dist.get_process_group_ranks(group)
    made = close_at_exit(_core.over(transport, seconds))
    _transports[made] = weakref.ref(transport)
    return made


def transport_of(comm: _core.Communicator) -> ProcessGroupTransport | None:
    """Returns the transport if it uses torch.distributed, otherwise None."""
    found = _transports.get(comm)
    return None if found is None else found()


def _alone(timeout: float | datetime.timedelta | None) -> _core.Communicator:
    ranks = launched_ranks()
    if dist.is_available() and dist.is_initialized():
        ranks = max(ranks, dist.get_world_size())
    if ranks > 1:
        raise Unavailable(
            f"a launcher started {ranks} ranks, but THINWIRE_COMM=local would run each of them "
            "alone: unset it, or start one process"
        )
    return close_at_exit(_core.local_group(1, timeout_of(timeout))[0])


def launched_ranks() -> int:
    """Returns the number of ranks from a launcher's variables, or 1."""
    names = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
    values = [os.environ.get(name, "") for name in names]
    return max([int(value) for value in values if value.isdecimal()], default=1)

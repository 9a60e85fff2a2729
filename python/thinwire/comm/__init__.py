# SPDX-License-Identifier: Apache-2.0
"""How ranks find each other and move bytes."""

from .groups import close_group, communicator_for, group_for_device
from .launch import init_distributed
from .local import run_local_ranks, seeded
from .modules import broadcast_buffers, local_gradients
from .mpi import Mpi4pyTransport
from .process_group import ProcessGroupTransport

__all__ = [
    "Mpi4pyTransport",
    "ProcessGroupTransport",
    "broadcast_buffers",
    "close_group",
    "communicator_for",
    "group_for_device",
    "init_distributed",
    "local_gradients",
    "run_local_ranks",
    "seeded",
]

# SPDX-License-Identifier: Apache-2.0
"""Rendezvous of ranks, and transports between them."""

from .groups import communicator_for
from .launch import init_distributed
from .local import run_local_ranks, seeded
from .modules import broadcast_buffers, local_gradients
from .mpi import Mpi4pyTransport
from .process_group import ProcessGroupTransport

__all__ = [
    "Mpi4pyTransport",
    "ProcessGroupTransport",
    "broadcast_buffers",
    "communicator_for",
    "init_distributed",
    "local_gradients",
    "run_local_ranks",
    "seeded",
]

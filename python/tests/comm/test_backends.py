# SPDX-License-Identifier: Apache-2.0
"""comm_backend_name "mpi" with processes."""

from __future__ import annotations

import optim_cases as cases
import ranks


def train_over_mpi() -> str:
    net = cases.model()
    optimizer = cases.make("OnebitAdam", net.parameters(), comm_backend_name="mpi")
    cases.train(net, optimizer, range(6), optimizer._comm.rank)
    return f"{optimizer._comm.backend} {cases.bits(net)}"


def test_mpi_is_chosen_by_its_name() -> None:
    ranks.require("mpi", ranks.has_mpi(), "no mpirun or mpi4py")
    first, second = ranks.results(2, __file__, "train_over_mpi", launcher="mpirun")
    assert first == second
    assert first.startswith("mpi4py ")


def test_mpi_without_mpirun_is_refused() -> None:
    ranks.require("mpi", ranks.has_mpi(), "no mpirun or mpi4py")
    for rank in ranks.call(2, __file__, "train_over_mpi", seconds=60):
        assert rank.returncode != 0
        assert "MPI knows 1: start with mpirun" in rank.stderr

# SPDX-License-Identifier: Apache-2.0
"""The same bits and bytes, whatever carries them."""

from __future__ import annotations

from typing import Any

import native
import pytest
import ranks
import torch
from thinwire import comm


def train(group: Any) -> dict[str, Any]:
    training = native.Training(group).steps(12)
    assert training.phase == "compressed"
    result = training.digests()
    part = group.split(group.rank % 2, -group.rank)
    values = torch.full((5,), float(2**group.rank))
    part.all_reduce(values)
    result |= {"part": [part.rank, part.size, values.tolist()]}
    part.close()
    training.optimizer.close()
    return result


def train_over(name: str) -> dict[str, Any]:
    """A rank: over what THINWIRE_COMM names."""
    if name == "torch":
        comm.init_distributed("gloo")
    group = comm.communicator_for()
    assert group.backend == {"torch": "torch:gloo", "mpi4py": "mpi4py"}[name]
    result = train(group)
    group.close()
    return result


@pytest.mark.parametrize("world", [2, 3])
def test_gloo_and_mpi4py_equal_local(world: int) -> None:
    local = comm.run_local_ranks(world, train)
    assert len({result["params"] for result in local}) == 1
    assert len({result["worker_error"] for result in local}) == world
    for name, launcher in (("torch", "torchrun"), ("mpi4py", "mpirun")):
        ranks.require("mpi", name != "mpi4py" or ranks.has_mpi(), "no mpirun or mpi4py")
        env = {"THINWIRE_COMM": name}
        options: dict[str, Any] = {"launcher": launcher, "env": env}
        found = ranks.results(world, __file__, "train_over", name, **options)
        assert found == local, name


def split_thrice() -> list[Any]:
    """A rank: parts of parts, and a rank that is in none, while others exchange."""
    comm.init_distributed("gloo")
    group = comm.communicator_for()
    none = group.split(-1 if group.rank == 1 else 0)
    assert (none is None) == (group.rank == 1)
    pair = group.split(group.rank // 2)
    single = pair.split(group.rank)
    values = torch.tensor([group.rank])
    results: list[Any] = [single.size]
    for part in (group, pair, group, pair):
        sums = values.clone()
        part.all_reduce(sums)
        results.append(sums.item())
    return results


def test_parts_do_not_take_each_others_messages() -> None:
    got = ranks.results(3, __file__, "split_thrice")
    assert got == [[1, 3, 1, 3, 1], [1, 3, 1, 3, 1], [1, 3, 2, 3, 2]]

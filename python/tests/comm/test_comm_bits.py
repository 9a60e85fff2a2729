# SPDX-License-Identifier: Apache-2.0
"""The same bits and bytes, whatever carries them, and beside forks, threads that hold the
GIL, other collectives and other optimizers."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from typing import Any

import native
import optim_cases as cases
import pytest
import ranks
import torch
import torch.distributed as dist
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


STEPS = 200


def train_alone() -> str:
    """STEPS steps with a group of its own; what has become of the parameters."""
    group = comm.communicator_for()
    training = native.Training(group).steps(STEPS)
    training.optimizer.close()
    group.close()
    return native.digest(training.params)


def train_with_collectives_of_the_user() -> str:
    """Trains while another thread calls collectives on the default group."""
    values = torch.ones(1000)

    def collect() -> None:
        for _ in range(STEPS):
            dist.all_reduce(values)
            values.div_(dist.get_world_size())

    thread = threading.Thread(target=collect)
    thread.start()
    result = train_alone()
    thread.join()
    assert torch.equal(values, torch.ones(1000))
    return result


def train_two_on_threads() -> list[str]:
    """Groups are made in one order; their steps are free."""
    groups = [comm.communicator_for() for _ in range(2)]
    results: list[str] = ["", ""]

    def run(index: int) -> None:
        training = native.Training(groups[index]).steps(STEPS)
        training.optimizer.close()
        results[index] = native.digest(training.params)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for group in groups:
        group.close()
    return results


def all_kinds() -> dict[str, Any]:
    comm.init_distributed("gloo")
    torch.set_num_threads(1)
    results: dict[str, Any] = {"alone": train_alone()}
    results["collectives"] = train_with_collectives_of_the_user()
    results["two on threads"] = train_two_on_threads()
    # The default of 5 ms makes every exchange wait that long for the GIL, twice.
    sys.setswitchinterval(1e-4)
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    spinning = threading.Thread(target=spin)
    spinning.start()
    try:
        results["spinning"] = train_alone()
    finally:
        stop.set()
        spinning.join()
    dist.destroy_process_group()
    return results


def test_200_steps_beside_everything_else_give_the_same_bits() -> None:
    first, second = ranks.results(2, __file__, "all_kinds", seconds=100)
    alone = first["alone"]
    for found in (first, second):
        assert found == {
            "alone": alone,
            "collectives": alone,
            "two on threads": [alone, alone],
            "spinning": alone,
        }


def fork_and_leave() -> list[Any]:
    """The child ends as scripts do: by sys.exit(), with all destructors."""
    comm.init_distributed("gloo")
    net, optimizer = cases.made("OnebitAdam")
    training = native.Training(optimizer._comm).steps(6)
    cases.train(net, optimizer, range(6), dist.get_rank())
    child = os.fork()
    if child == 0:
        told = [
            ranks.failure_of(optimizer.step),
            ranks.failure_of(lambda: training.steps(1)),
            ranks.failure_of(optimizer._comm.barrier),
            ranks.failure_of(lambda: comm.communicator_for(optimizer._comm).barrier()),
        ]
        training.optimizer.close()  # the other one is open, as in a script
        is_refused = all("FailedPrecondition: " in t and "forked" in t for t in told)
        sys.exit(0 if is_refused else "\n".join(told))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    cases.train(net, optimizer, range(6, 9), dist.get_rank())
    return [code, training.steps(6).digests()]


def test_a_forked_child_is_refused_and_exits_and_the_parent_continues() -> None:
    undisturbed = comm.run_local_ranks(
        2, lambda group: native.Training(group).steps(12).digests()
    )
    found = ranks.results(2, __file__, "fork_and_leave")
    assert found == [[0, digests] for digests in undisturbed]


def leave_amid_steps_of_a_daemon() -> str:
    comm.init_distributed("gloo")
    net, optimizer = cases.made("OnebitAdam")
    begun = threading.Event()

    def train_for_ever() -> None:
        for step in itertools.count():
            cases.train(net, optimizer, [step], dist.get_rank())
            begun.set()

    threading.Thread(target=train_for_ever, daemon=True).start()
    begun.wait()
    return "left"


def test_the_interpreter_ends_amid_steps_of_a_daemon_thread() -> None:
    for _ in range(3):  # it ended by a signal in two of three times
        name = "leave_amid_steps_of_a_daemon"
        assert ranks.results(2, __file__, name) == ["left", "left"]

# SPDX-License-Identifier: Apache-2.0
"""Process groups that are accepted and refused; modules beside their optimizer; ranks as
threads."""

from __future__ import annotations

import datetime
import json
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import native
import optim_cases as cases
import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from core_transports import Mailboxes, ThreadTransport
from thinwire import _core, comm
from thinwire.comm import run_local_ranks
from thinwire.comm.duration import timeout_of
from thinwire.comm.process_group import _Flight, _Whereabouts
from thinwire.comm.watcher import Watcher
from thinwire.errors import (
    CommFailure,
    FailedPrecondition,
    InvalidArgument,
    Unavailable,
)

LAUNCHED = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*LAUNCHED, "RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("THINWIRE_COMM", raising=False)
    monkeypatch.delenv("THINWIRE_TIMEOUT", raising=False)


@pytest.fixture
def world_of_one() -> Iterator[None]:
    comm.init_distributed("gloo", timeout=datetime.timedelta(seconds=77))
    yield
    dist.destroy_process_group()


@pytest.mark.quick
def test_alone() -> None:
    group = comm.communicator_for()
    assert (group.rank, group.size, group.timeout) == (0, 1, 600.0)
    assert comm.communicator_for(group) is group
    group.close()


@pytest.mark.quick
def test_timeout_is_the_arguments_then_the_variables_then_the_groups(
    monkeypatch: pytest.MonkeyPatch, world_of_one: None
) -> None:
    assert timeout_of(None) == 600.0
    assert comm.communicator_for().timeout == 77.0
    monkeypatch.setenv("THINWIRE_TIMEOUT", "5s")
    assert comm.communicator_for().timeout == 5.0
    assert comm.communicator_for(timeout=2.5).timeout == 2.5
    assert comm.communicator_for(timeout=datetime.timedelta(minutes=1)).timeout == 60
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(InvalidArgument, match="timeout must be > 0 seconds, got"):
            comm.communicator_for(timeout=wrong)
    monkeypatch.setenv("THINWIRE_TIMEOUT", "soon")
    with pytest.raises(InvalidArgument, match="THINWIRE_TIMEOUT must be .* got 'soon'"):
        comm.communicator_for()
    monkeypatch.setenv("THINWIRE_TIMEOUT", "")
    assert comm.communicator_for().timeout == 77.0


@pytest.mark.quick
@pytest.mark.parametrize("variable", LAUNCHED)
def test_ranks_that_have_not_been_joined(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "4")
    with pytest.raises(FailedPrecondition, match="4 ranks.*init_process_group"):
        comm.communicator_for()
    monkeypatch.setenv("THINWIRE_COMM", "local")
    with pytest.raises(Unavailable, match="a launcher started 4 ranks"):
        comm.communicator_for()


@pytest.mark.quick
def test_thinwire_comm_is_one_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THINWIRE_COMM", "nccl")
    with pytest.raises(InvalidArgument, match='torch, mpi4py, mpi, local, got "nccl"'):
        comm.communicator_for()
    monkeypatch.setenv("THINWIRE_COMM", "torch")
    with pytest.raises(FailedPrecondition, match="init_process_group"):
        comm.communicator_for()
    monkeypatch.setenv("THINWIRE_COMM", "local")
    assert comm.communicator_for().size == 1


@pytest.mark.quick
@pytest.mark.parametrize("wrong", ["world", 0, object(), dist.GroupMember])
def test_what_is_no_group(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="process_group must be a ProcessGroup"):
        comm.communicator_for(wrong)


@pytest.mark.quick
def test_a_transport_of_the_users() -> None:
    group = comm.communicator_for(ThreadTransport(Mailboxes(1), 0))
    assert group.backend == "threads"
    assert native.Training(group).steps(6).phase == "compressed"


@pytest.mark.quick
def test_local_ranks_return_in_order_and_raise_the_first_failure() -> None:
    assert comm.run_local_ranks(3, lambda group: group.rank * 10) == [0, 10, 20]

    def fail(group: _core.Communicator) -> None:
        if group.rank == 1:
            raise KeyError("which")
        group.barrier()

    with pytest.raises(KeyError, match="which") as caught:
        comm.run_local_ranks(3, fail)
    assert caught.value.__notes__ == ["on rank 1 of run_local_ranks()"]
    for wrong in (0, -1, "2"):
        with pytest.raises(InvalidArgument, match="n must be a number of ranks >= 1"):
            comm.run_local_ranks(wrong, fail)  # type: ignore[arg-type]


class Buffers(torch.nn.Module):
    def __init__(self, seed: int, size: int = 5) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(2, size, generator=generator)
        self.register_buffer("transposed", values.t())
        self.register_buffer("bf16", values.to(torch.bfloat16))
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("mask", values > 0)
        self.register_buffer("none", torch.empty(0))


def check_buffers(rank: int, group: Any) -> None:
    module = Buffers(rank)
    comm.broadcast_buffers(module, group)
    for name, expected in Buffers(0).named_buffers():
        assert torch.equal(module.get_buffer(name), expected), name
    with pytest.raises((InvalidArgument, CommFailure), match="on all ranks"):
        comm.broadcast_buffers(Buffers(rank, 5 + rank), group)
    comm.broadcast_buffers(torch.nn.Linear(2, 2), group)


@pytest.mark.quick
def test_broadcast_buffers_over_a_communicator() -> None:
    comm.run_local_ranks(3, lambda group: check_buffers(group.rank, group))


def join() -> None:
    """Three ranks: groups of two of them, twice, and what is beside it."""
    comm.init_distributed("gloo")
    comm.init_distributed("gloo")
    threads = threading.active_count()
    check_buffers(dist.get_rank(), None)
    check_buffers(dist.get_rank(), dist.group.WORLD)
    end = time.monotonic() + 20
    while threading.active_count() > threads:  # nothing of those calls stays
        assert time.monotonic() < end
        time.sleep(0.05)
    subset = dist.new_group([2, 0])
    if dist.get_rank() == 1:
        for take in (comm.communicator_for, comm.ProcessGroupTransport):
            with pytest.raises(InvalidArgument, match="member"):
                take(subset)
    else:
        # Ranks have made different numbers of groups when the second one is made.
        if dist.get_rank() == 0:
            dist.new_group([0], use_local_synchronization=True)
        for _ in range(2):
            group = comm.communicator_for(subset)
            values = torch.tensor([float(dist.get_rank())])
            group.all_reduce(values)
            assert (group.size, values.item()) == (2, 2.0)
            group.close()
    dist.destroy_process_group()


def test_groups_of_some_ranks() -> None:
    ranks.results(3, __file__, "join")


@pytest.mark.quick
def test_what_threads_tell_of_their_channels_is_all_published() -> None:
    second, published = threading.Event(), []

    class Slow:
        def set(self, _: str, text: str) -> None:
            if not published and threading.current_thread() is first:
                second.wait(0.3)
            published.append(json.loads(text))
            second.set()

    told = _Whereabouts(dist.HashStore(), 0)
    told._store = Slow()  # type: ignore[assignment]
    flight = _Flight(0.0, "", "op", {}, {})
    first = threading.Thread(target=told.tell, args=(1, flight))
    first.start()
    time.sleep(0.1)
    told.tell(2, flight)
    first.join()
    assert published[-1].keys() == {"1", "2"}


@pytest.mark.quick
def test_a_watcher_survives_errors() -> None:
    class Watched:
        looks = 0

        def look(self) -> bool:
            self.looks += 1
            raise ValueError

    watched = Watched()
    watcher = Watcher(weakref.ref(watched))
    end = time.monotonic() + 20
    while watched.looks < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert watcher.briefly(lambda: json.loads("{")) is None
    assert watcher.briefly(lambda: 1) == 1


def test_local_gradients(world_of_one: None) -> None:
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    comm.local_gradients(ddp)
    with pytest.raises(FailedPrecondition, match="without a communication hook"):
        comm.local_gradients(ddp)
    with pytest.raises(
        TypeError, match="must be a DistributedDataParallel, got Linear"
    ):
        comm.local_gradients(ddp.module)


def train_over_mpi() -> str:
    net, optimizer = cases.made("OnebitAdam", comm_backend_name="mpi")
    cases.train(net, optimizer, range(6), optimizer._comm.rank)
    return f"{optimizer._comm.backend} {cases.bits(net)}"


def test_mpi_is_chosen_by_its_name() -> None:
    ranks.require("mpi", ranks.has_mpi(), "no mpirun or mpi4py")
    first, second = ranks.results(2, __file__, "train_over_mpi", launcher="mpirun")
    assert first == second and first.startswith("mpi4py ")
    for rank in ranks.call(2, __file__, "train_over_mpi"):
        assert rank.returncode != 0
        assert "MPI knows 1: start with mpirun" in rank.stderr


def sums_over_parts_of_mpi() -> list[float | str]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    pair = world.Create(world.Get_group().Incl([2, 0]))
    found: list[float | str] = []
    for part in (world.Split(world.rank == 1), world.Split_type(MPI.COMM_TYPE_SHARED)):
        group = comm.communicator_for(comm.Mpi4pyTransport(part), timeout=20)
        values = torch.tensor([float(world.rank)])
        group.all_reduce(values)
        found += [group.size, values.item()]
        group.close()
    found.append(ranks.failure_of(lambda: comm.Mpi4pyTransport(pair)))
    return [*found, ranks.failure_of(lambda: comm.Mpi4pyTransport("world"))]


def test_parts_of_mpi() -> None:
    ranks.require("mpi", ranks.has_mpi(), "no mpirun or mpi4py")
    zero, one, two = ranks.results(
        3, __file__, "sums_over_parts_of_mpi", launcher="mpirun"
    )
    refused = (
        "InvalidArgument: comm: must be an mpi4py.MPI.Intracomm that has this rank"
    )
    assert zero == two == [2, 2.0, 3, 3.0, "", f"{refused}, got str"]
    assert one == [
        1,
        1.0,
        3,
        3.0,
        f"{refused}, got MPI.COMM_NULL",
        f"{refused}, got str",
    ]


def join_by_mpi(port: int) -> list[int]:
    comm.init_distributed("gloo", distributed_port=port)
    return [dist.get_rank(), dist.get_world_size()]


def test_init_distributed_under_mpirun() -> None:
    ranks.require("mpi", ranks.has_mpi(), "no mpirun or mpi4py")
    port = ranks.free_port()
    found = ranks.results(2, __file__, "join_by_mpi", port, launcher="mpirun")
    assert found == [[0, 2], [1, 2]]


def ranks_after_initialize() -> int:
    model = torch.nn.Linear(3, 2)
    optimizer = {"type": "AdamW", "params": {"lr": 1e-3}}
    config = {"train_micro_batch_size_per_gpu": 4, "optimizer": optimizer}
    thinwire.initialize(model=model, model_parameters=model.parameters(), config=config)
    return dist.get_world_size()


@pytest.mark.parametrize("n", [1, 2])
def test_initialize_starts_torch_distributed_under_torchrun(n: int) -> None:
    assert ranks.results(n, __file__, "ranks_after_initialize") == [n] * n


@pytest.mark.quick
def test_init_distributed_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(FailedPrecondition, match="dist_init_required=False"):
        comm.init_distributed(dist_init_required=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(FailedPrecondition, match="WORLD_SIZE, MASTER_ADDR not set"):
        comm.init_distributed()
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
    with pytest.raises(FailedPrecondition, match="mpirun -x MASTER_ADDR"):
        comm.init_distributed()
    assert not dist.is_initialized()


@pytest.mark.quick
def test_a_rank_that_returns_early_is_named_at_once() -> None:
    """Its optimizer lives on in the results, as in a program that collects them."""

    def body(communicator: Any) -> Any:
        net, optimizer = cases.made("OnebitAdam", communicator)
        cases.train(net, optimizer, range(6 - communicator.rank), communicator.rank)
        return optimizer

    with pytest.raises(CommFailure, match="rank 1 gave up: its function has returned"):
        run_local_ranks(2, body)


@pytest.mark.quick
def test_ranks_that_return_one_after_the_other_are_no_failure() -> None:
    def body(communicator: Any) -> int:
        communicator.barrier()
        time.sleep(0.05 * communicator.rank)
        return int(communicator.rank)

    assert run_local_ranks(4, body) == [0, 1, 2, 3]


@pytest.mark.quick
def test_models_seeded_in_threads_are_the_same_every_time() -> None:
    def body(communicator: Any) -> list[torch.Tensor]:
        communicator.barrier()  # all of them at once
        with thinwire.seeded(3):
            layers = []
            for _ in range(5):
                layers.append(torch.randn(4000))
                time.sleep(0.001)  # another thread would come in here
        return layers

    random = torch.Generator().manual_seed(3)
    expected = [torch.randn(4000, generator=random) for _ in range(5)]
    before = torch.get_rng_state()
    for layers in run_local_ranks(4, body):
        assert all(map(torch.equal, layers, expected))
    assert torch.equal(torch.get_rng_state(), before)

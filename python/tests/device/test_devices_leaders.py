# SPDX-License-Identifier: Apache-2.0
"""One rank per host steps: the device's process group sums inside a host, and hands the
parameters back. The bits are those of one rank per host that sees its host's batches."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import device_cases as cases
import devices
import engines
import leader_cases
import pytest
import ranks
import torch
from leader_cases import CASES, STEPS, config_of, parameters_of
from thinwire.comm import communicator_for, init_distributed


def flat(names: list[str], per_host: int) -> list[Any]:
    """The same on one rank per host, on the CPU: losses by rank of led(). It accumulates its
    host's batches, or has one backward of them all."""

    init_distributed("gloo", verbose=False)
    comm = communicator_for(None)
    found = []
    for name in names:
        model = leader_cases.net_of(name, comm.rank)
        engine = engines.make(comm, config_of(name, per_host, False), model=model)
        dtype = next(model.parameters()).dtype
        # The test group adds the last rank's values first, and torch adds in order.
        order = [comm.rank * per_host + k for k in reversed(range(per_host))]
        losses: list[list[float]] = [[] for _ in order]
        for step in range(STEPS):
            windows = []
            for rank in order:
                windows.append(
                    [
                        leader_cases.loss_of(engine, name, rank, step, micro)
                        for micro in range(leader_cases.window_of(name))
                    ]
                )
                its_losses = losses[rank - comm.rank * per_host]
                its_losses += [loss.item() for loss in windows[-1]]
            if leader_cases.has_one_backward(name):
                adds_in = dtype if leader_cases.adds_narrow(name) else torch.float32
                windows = [[with_gradients_of(engine, windows, adds_in)]]
            for window in windows:
                engine.backward(window[0])
                engine.step()
        found.append([losses, parameters_of(model)])
        engine.destroy()
    comm.close()
    return found


def with_gradients_of(
    engine: Any, windows: list[list[torch.Tensor]], dtype: torch.dtype
) -> torch.Tensor:
    """A loss whose gradients are the means of all others', added in their order in each
    window, and then in the order of windows."""
    parameters = [p for p in engine.module.parameters() if p.requires_grad]
    factor = engine._training.native.loss_factor
    count = sum(map(len, windows))

    def plus(sums: list[Any], found: Iterable[Any]) -> list[Any]:
        pairs = zip(sums, found, strict=True)
        return [b if a is None else a if b is None else a + b for a, b in pairs]

    def sums_of(window: list[torch.Tensor]) -> list[Any]:
        sums: list[Any] = [None] * len(parameters)
        for loss in window:
            scaled = loss * (factor / count)
            found = torch.autograd.grad(scaled, parameters, allow_unused=True)
            sums = plus(sums, (g if g is None else g.to(dtype) for g in found))
        return sums

    sums = functools.reduce(plus, map(sums_of, windows))
    parts = [(p.float() * (g.float() / factor)).sum() for p, g in zip(parameters, sums)]
    return torch.stack(parts).sum()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("per_host", [2, pytest.param(4, marks=pytest.mark.long)])
def test_two_hosts_have_the_bits_of_two_ranks(per_host: int) -> None:
    names = list(CASES)
    by_rank = devices.run(2 * per_host, leader_cases.__file__, "led", names, per_host)
    by_host = devices.run(2, __file__, "flat", names, per_host)
    for k, name in enumerate(names):
        for rank, found in enumerate(by_rank):
            losses, values, report = found[k]
            its_losses, its_values = by_host[rank // per_host][k]
            where = f"{name} on rank {rank}"
            assert devices.alike(losses, its_losses[rank % per_host]), where
            assert devices.alike(values, its_values), where
            assert report == by_rank[0][k][2], where
            if "fp16" in name:
                assert report[-1] == 1, where


# ---- threads


def threads(cores: int, asked: int) -> list[str]:
    """Returns what the first rank says of threads, if each rank may use some cores."""
    import logging
    import os

    lines = devices.told(logging.INFO)
    os.sched_getaffinity = lambda _: set(range(cores))
    comm, device = cases.join()
    config = config_of("Adam", 2, True)
    config["thinwire"]["threads"] = asked
    _, engine = cases.made(comm, device, config)
    cases.step(engine, 0)
    engine.destroy()
    comm.close()
    return [line for line in lines if "thread(s)" in line]


def test_leaders_divide_the_cores_of_their_machine() -> None:
    def said(cores: int, asked: int = 0, **env: str) -> list[str]:
        first, *others = devices.run(4, __file__, "threads", cores, asked, **env)
        assert others == [[]] * 3
        return list(first)

    line = "the leader of this host computes with {} thread(s)"
    assert said(7) == [line.format(3)]
    assert said(1) == [line.format(1)]
    assert said(7, 2) == [line.format(2)]
    assert said(7, THINWIRE_NUM_THREADS="2") == []


def named(name: str) -> list[str]:
    """The groups inside hosts of engines whose files name no backend, and this one."""
    import fence
    import torch.distributed as dist

    dist.Backend.register_backend(name, fence._native.create, devices=["fence"])
    comm, device = cases.join()
    found = []
    for given in ({}, {"comm_backend_name": name}):
        options = engines.optimizer_of("OneBitAdam", freeze_step=2, **given)
        config = engines.config_of(**options, thinwire={"ranks_per_host": 2})
        model, engine = cases.made(comm, device, config)
        for step in range(3):
            cases.step(engine, step)
        assert engine._training.hosts is not None
        found += [engine._training.hosts.backend, str(parameters_of(model))]
        engine.destroy()
    comm.close()
    return found


@pytest.mark.skipif(not devices.IS_FENCE, reason="it registers a group by that name")
def test_comm_backend_name_chooses_the_group_inside_a_host() -> None:
    for found in devices.run(4, __file__, "named", "hccl"):
        assert found[::2] == ["fence_ccl", "hccl"]
        assert found[1] == found[3]


# ---- checkpoints and values


def resumed(folder: str, per_host: int) -> list[Any]:
    """Trains, saves, trains on; and again from the checkpoint, with the same end."""
    import thinwire

    comm, device = cases.join()
    found: list[Any] = []
    for name in ("1-bit Adam", "ZeRO-2 fp16"):
        ends = []
        root = f"{folder}/{name[0]}"
        for is_again in (False, True):
            torch.manual_seed(comm.rank)
            model, engine = cases.made(comm, device, config_of(name, per_host, True))
            if is_again:
                torch.manual_seed(77)
                report = thinwire.load(root, engine)
                assert report.step == engine.global_steps == 6
                assert report.own == {"rank": comm.rank}, report.own
                assert report.own_of_ranks == [{"rank": rank} for rank in range(4)]
            for step in range(6 if is_again else 0, 10):
                noise = torch.rand(())  # of the rank's own generator, which is saved
                loss = cases.loss_of(engine, comm.rank, step)
                engine.backward(loss * noise.item())
                engine.step()
                if step == 5:
                    model.frozen.data.fill_(comm.rank)
                    own = {"rank": comm.rank}
                    saved = thinwire.save(root, engine, own=own, durable=False)
                    assert saved.step == 6
                    model.frozen.data.fill_(0)
            ends.append(parameters_of(model))
        assert ends[0] == ends[1], name
        found.append(ends[0])
        gradient = None
        if name.startswith("ZeRO-2"):
            engine.backward(cases.loss_of(engine, comm.rank, 20))
            gradient = engine.full_gradient("first.bias").tolist()
            engine.set_full_gradient("first.bias", torch.zeros(33))
            engine.step()
        engine.set_full_parameter("last.bias", torch.full((1,), 0.25))
        exp_avg = engine.full_state("first.weight", "exp_avg").tolist()
        with engine.evaluation():
            value = engine.mean(comm.rank)
        found += [gradient, exp_avg, value, parameters_of(model)]
        with pytest.raises(thinwire.errors.InvalidArgument, match="key"):
            engine.full_state("first.weight", "nothing")
        engine.destroy()
    comm.close()
    return found


def test_a_run_continues_from_a_checkpoint_of_leaders(tmp_path: Any) -> None:
    found = devices.run(4, __file__, "resumed", str(tmp_path), 2)
    assert found[0][3] == 1.5
    for rank in found[1:]:
        assert rank == found[0]


def crossed(folder: str) -> list[int]:
    """Own values that this rank gets with and without leaders, from a checkpoint of the
    other kind."""
    import thinwire

    comm, device = cases.join()
    of_kinds = []
    for hierarchy in ("auto", "flat"):
        config = leader_cases.CASES["Adam"] | {
            "thinwire": {"ranks_per_host": 2, "hierarchy": hierarchy}
        }
        _, engine = cases.made(comm, device, engines.config_of(**config))
        assert (engine._training.hosts is not None) == (hierarchy == "auto")
        root = f"{folder}/{hierarchy}"
        thinwire.save(root, engine, own={"rank": comm.rank}, durable=False)
        of_kinds.append((engine, root))
    (led, by_leaders), (plain, by_ranks) = of_kinds
    reports = [thinwire.load(by_ranks, led), thinwire.load(by_leaders, plain)]
    for engine, _ in of_kinds:
        engine.destroy()
    comm.close()
    for report in reports:
        assert report.own_of_ranks == [{"rank": rank} for rank in range(4)]
    return [report.own["rank"] for report in reports]


def test_own_values_are_those_of_the_rank_with_leaders_and_without(
    tmp_path: Any,
) -> None:
    found = devices.run(4, __file__, "crossed", str(tmp_path))
    assert found == [[rank, rank] for rank in range(4)]


# ---- ranks that differ

DIFFERENT: dict[str, dict[str, Any]] = {
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 3},
    "train_micro_batch_size_per_gpu": {"train_micro_batch_size_per_gpu": 2},
    "lr": engines.optimizer_of("OneBitAdam", freeze_step=4, lr=0.02),
    "type": leader_cases.ADAM,
    "bf16": {"bf16": {"enabled": True}},
    "hierarchy": {"thinwire": {"ranks_per_host": 2, "hierarchy": "flat"}},
}


def refusals(follower: int) -> list[str]:
    """What this rank is told if that follower has another configuration, parameter or
    group. An engine of equal ones then trains."""
    import thinwire

    comm, device = cases.join()
    common = config_of("1-bit Adam", 2, True)
    is_other = comm.rank == follower
    told = []
    for what in (*DIFFERENT, "no bias", "betas", "mask", "lr_scheduler", "optimizer"):
        model = engines.Net(seed=comm.rank).to(device)
        own: dict[str, Any] = {}
        if what == "no bias" and is_other:
            model.last.bias.requires_grad_(False)
        if what == "betas":
            betas = (0.9, 0.99) if is_other else (0.8, 0.99)
            params = list(model.parameters())
            own["model_parameters"] = [{"params": params, "betas": betas}]
        groups = own.get("model_parameters", [{}])
        if what == "mask":
            mask = [torch.ones(p.shape) for p in model.parameters()]
            mask[0][0] = is_other
            own["model_parameters"] = [{"params": list(model.parameters())}]
            own["model_parameters"][0]["exp_avg_mask"] = mask
        if what == "lr_scheduler" and is_other:
            own["lr_scheduler"] = lambda made: torch.optim.lr_scheduler.LambdaLR(
                made, lambda step: 0.5
            )
        if what == "optimizer" and is_other:
            own["optimizer"] = lambda given: thinwire.OnebitAdam(given, lr=0.01)
        before = parameters_of(model)
        config = common | (DIFFERENT.get(what, {}) if is_other else {})
        with pytest.raises(thinwire.errors.InvalidArgument) as caught:
            engines.make(comm, config, model=model, **own)
        assert parameters_of(model) == before, what
        assert set(groups[0]) <= {"params", "betas"}, what
        assert len(str(caught.value)) < 1000, what
        told.append(f"{what}: {caught.value}")
    _, engine = cases.made(comm, device, common)
    cases.step(engine, 0)
    assert engine.global_steps == 1
    engine.destroy()
    comm.close()
    return told


@pytest.mark.parametrize("follower", [1, 3])
def test_a_follower_that_differs_is_named_on_all_ranks(follower: int) -> None:
    first, *others = devices.run(4, __file__, "refusals", follower)
    assert others == [first] * 3
    for told in first:
        what, text = told.split(": ", 1)
        assert f"on rank {follower}" in text, told
        assert what not in DIFFERENT or what == "bf16" or f'"{what}"' in text, told


# ---- ranks that are lost

TIMEOUT = 4.0


def lost(what: str) -> dict[str, Any]:
    """Which error this rank gets, and after how many seconds."""
    import os
    import signal
    import time

    import thinwire

    comm, device = cases.join(TIMEOUT)
    _, engine = cases.made(comm, device, config_of("1-bit Adam", 2, True))
    moment, victim = what.split()
    is_victim = comm.rank == int(victim)
    began = 0.0
    for step in range(8):
        began = time.monotonic()
        loss = cases.loss_of(engine, comm.rank, step)
        try:
            if step == 5 and is_victim and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            if step == 5 and is_victim and moment == "hangs":
                time.sleep(2 * TIMEOUT)
            if step == 5 and is_victim and moment == "group":
                engine._training.hosts._group._get_backend(device).abort()
            if step == 5 and is_victim and moment == "inside":
                hosts = engine._training.hosts

                def die(flat: torch.Tensor) -> None:
                    os.kill(os.getpid(), signal.SIGKILL)

                hosts.broadcast = die
            engine.backward(loss)
            engine.step()
        except thinwire.errors.CommFailure as error:
            seconds = time.monotonic() - began
            return {"error": str(error), "seconds": seconds, "step": step}
    return {"error": "", "seconds": 0.0, "step": -1}


def long(what: str) -> Any:
    return pytest.param(what, marks=pytest.mark.long)


@pytest.mark.parametrize(
    "what",
    [
        *("before 1", "inside 2", "group 1", "hangs 3"),
        *map(long, ("before 0", "before 2", "before 3", "group 2")),
    ],
)
def test_all_ranks_name_the_one_that_is_lost(what: str) -> None:
    devices.require()
    moment, victim = what.split()
    named = f"waiting for rank {victim}" if moment == "hangs" else f"rank {victim}"
    if moment == "group":
        named = "fence_ccl: aborted" if devices.IS_FENCE else ""
    got = ranks.call(4, __file__, "lost", what, seconds=60)
    for rank in got:
        if rank.rank == int(victim) and moment != "group":
            assert moment == "hangs" or rank.returncode != 0
            continue
        assert rank.value is not None, ranks.describe(got)
        where = f"rank {rank.rank}: {rank.value}"
        assert rank.value["seconds"] < TIMEOUT + 2, where
        assert named in rank.value["error"] and rank.value["error"], where

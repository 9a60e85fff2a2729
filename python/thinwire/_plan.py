# SPDX-License-Identifier: Apache-2.0
"""python -m thinwire plan: what a step would take with each way to average."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable

from . import _core

# Of what forward and backward take together.
_BACKWARD_PART = 2 / 3
_MOST_TIME = 1e9  # of a flag, in its unit
_MOST_STEPS = 1e8  # as engine::RunStages
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def add_arguments(plan: argparse.ArgumentParser) -> None:
    """Those of `thinwire plan`."""
    plan.add_argument(
        "--params", type=_number(1, 1e15), required=True, help="parameters of the model"
    )
    for name in ("forward", "backward"):
        plan.add_argument(
            f"--{name}-ms",
            type=_number(0, _MOST_TIME),
            default=0.0,
            help=f"one {name}, without any exchange",
        )
    plan.add_argument(
        "--compute-ms",
        type=_number(0, _MOST_TIME),
        default=0.0,
        help="instead of both: forward and backward together",
    )
    plan.add_argument(
        "--config", help="a configuration file: its dtype, accumulation, buckets"
    )
    plan.add_argument(
        "--dtype",
        choices=_DTYPES,
        help="of parameters (default: of --config, else fp32)",
    )
    plan.add_argument(
        "--threads",
        type=_number(0, 1024, int),
        default=-1,
        help="of a rank that compute backward (default: THINWIRE_NUM_THREADS, else 1); "
        "0: an accelerator does",
    )
    plan.add_argument(
        "--variance-every",
        type=_number(1, _MOST_TIME),
        default=0.0,
        help="0/1 Adam before its freeze, with one exact step in so many (default: after "
        "the freeze)",
    )
    plan.add_argument(
        "--steps",
        type=_number(1, _MOST_STEPS, int),
        help="of the run: predicts all of it, exact stages included, and ranks by it",
    )
    plan.add_argument(
        "--freeze-step",
        type=_number(1, _MOST_STEPS, int),
        help="exact steps of 1-bit Adam and lean 1-bit Adam (default: of --config, "
        "otherwise a fifth of --steps, at most 1000)",
    )
    plan.add_argument("--json", action="store_true", help="one JSON object per line")
    alone = plan.add_argument_group("alone", "of a network that is not there")
    alone.add_argument(
        "--ranks",
        type=_number(2, 1e6, int),
        help="of the job that is to be planned",
    )
    alone.add_argument(
        "--ranks-per-host",
        type=_number(1, 1024, int),
        help="ranks that share a network card (default: 1)",
    )
    alone.add_argument(
        "--link-gbps",
        type=_number(1e-3, 1e6),
        help="a host's network card, Gbit/s each way",
    )
    alone.add_argument(
        "--latency-us",
        type=_number(0, _MOST_TIME),
        help="of one collective (default: 50)",
    )
    plan.set_defaults(refuse_usage=plan.error)


def run_plan(given: argparse.Namespace) -> int:
    """Prints the plan; collective under a launcher, where rank 0 prints for all.

    Arguments that exclude or lack one another end the program with 2, before anything is
    measured. Raises InvalidArgument for a configuration that is wrong, CommFailure if the
    ranks cannot reach each other.
    """
    if given.compute_ms and (given.forward_ms or given.backward_ms):
        given.refuse_usage("--compute-ms stands for --forward-ms and --backward-ms")
    if given.freeze_step is not None:
        if given.steps is None:
            given.refuse_usage("--freeze-step: it needs --steps, the length of the run")
        if given.freeze_step > given.steps:
            given.refuse_usage(
                f"--freeze-step: must be at most --steps {given.steps}, or no step is "
                f"compressed, got {given.freeze_step}"
            )
    from .comm.groups import launched_ranks

    if launched_ranks() > 1:
        _in_job(given)
    else:
        _alone(given)
    return 0


def _alone(given: argparse.Namespace) -> None:
    if given.ranks is None or given.link_gbps is None:
        given.refuse_usage(
            "one rank alone knows no network: start it with torchrun, which measures "
            "one, or describe it by --ranks, --link-gbps and --latency-us"
        )
    on_host = given.ranks_per_host or 1
    if given.ranks % on_host:
        given.refuse_usage(
            f"--ranks-per-host must be a divisor of --ranks {given.ranks}, got {on_host}"
        )
    network = _core.Network()
    network.ranks, network.ranks_per_host = given.ranks, on_host
    network.gbps = given.link_gbps
    if given.latency_us is not None:
        network.latency_seconds = given.latency_us * 1e-6
    processors = _core.processors_for(on_host, given.threads)
    work = _workload(given, given.ranks, processors)
    (alone,) = _core.local_group(1)
    compute = _core.measure_compute(alone)
    # One rank adds nothing up: from memory traffic, as a share of what it has measured.
    compute.sum = compute.norm
    compute.spread.sum = compute.spread.norm
    if given.json:
        print(compute.unstable(), end="", file=sys.stderr)
    else:
        print(f"as described: {network}{compute}{processors}", end="")
    print(_core.plan(work, network, compute, given.json), end="")


def _in_job(given: argparse.Namespace) -> None:
    described = (given.ranks, given.ranks_per_host, given.link_gbps, given.latency_us)
    if any(flag is not None for flag in described):
        given.refuse_usage(
            "under a launcher the network is measured: leave --ranks, --ranks-per-host, "
            "--link-gbps and --latency-us out, or start it without one"
        )
    import torch.distributed as dist

    from .comm import communicator_for, init_distributed

    init_distributed("gloo", verbose=False)
    comm = communicator_for()
    try:
        processors = _core.measure_processors(comm, given.threads)
        work = _workload(given, comm.size, processors)
        network, why = _core.measure_network(comm)
        compute = _core.measure_compute(comm)
        if comm.rank == 0:
            if given.json:
                warnings = network.unstable() + compute.unstable()
                print(warnings, end="", file=sys.stderr)
            else:
                print(f"measured: {network}{compute}{processors}", end="")
                if why:
                    print(f"flat: {why}")
            print(_core.plan(work, network, compute, given.json), end="")
        comm.barrier()
    finally:
        comm.close()
        dist.destroy_process_group()


def _workload(
    given: argparse.Namespace, ranks: int, processors: _core.Processors
) -> _core.Workload:
    work = _core.Workload()
    work.parameters = given.params
    work.forward_seconds = given.forward_ms * 1e-3
    work.backward_seconds = given.backward_ms * 1e-3
    if given.compute_ms:
        work.backward_seconds = given.compute_ms * 1e-3 * _BACKWARD_PART
        work.forward_seconds = given.compute_ms * 1e-3 - work.backward_seconds
    config = None
    if given.config is not None:
        config, _ = _core.Config.from_file(given.config)
        work = _core.workload_of(config, ranks, work)
    if given.steps is not None:
        work = _core.workload_of_run(work, given.steps, given.freeze_step, config)
    work.steps_per_variance_step = given.variance_every
    work.has_spare_core = processors.has_spare_core
    if given.dtype is not None:
        work.dtype = _core.DType[_DTYPES[given.dtype]]
    return work


def _number(
    least: float, most: float, kind: Callable[[str], float] = float
) -> Callable[[str], float]:
    """A type of argparse: nan is in no range."""

    def checked(text: str) -> float:
        with contextlib.suppress(ValueError):
            if least <= (value := kind(text)) <= most:
                return value
        raise argparse.ArgumentTypeError(
            f"must be in [{least:.16g}, {most:.16g}], got {text}"
        )

    return checked

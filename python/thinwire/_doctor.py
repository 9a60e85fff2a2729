# SPDX-License-Identifier: Apache-2.0
"""What `python -m thinwire doctor` says, a line per subject."""

from __future__ import annotations

import os
import platform
import socket
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from . import __version__, _core, _devices

Line = tuple[str, str]

LAUNCHERS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def run_doctor() -> int:
    """Prints the report; 1 if Thinwire cannot train here, else 0.

    Collective under a launcher, where rank 0 prints its lines, and one more for each
    difference. Raises CommFailure if the ranks cannot reach each other.
    """
    missing = _why_no_torch()
    lines = [
        f"{name:<14}{text}"
        for name, text in (*_about_build(), *_about_packages(missing))
    ]
    ranks = None if missing else _gather("\n".join(lines))
    if ranks is not None:
        rank, hosts, reports = ranks
        if rank != 0:
            return 0
        lines.append(f"{'ranks':<14}{_in_words(hosts)}")
        lines += _differences(hosts, reports)
    print("\n".join(lines))
    if missing:
        print(f"ready: no: {missing}")
        return 1
    print("ready: all that this version needs is here")
    return 0


def _about_build() -> Iterator[Line]:
    yield "version", __version__
    yield "python", f"{platform.python_implementation()} {platform.python_version()}"
    yield "compiler", _core.compiler
    yield "processor", f"{_core.processor()}, {os.cpu_count() or 1} cores"
    yield "kernels", f"{_core.cpu_target()}, of {' '.join(_core.cpu_targets())}"
    prefetches, why = _core.prefetch()
    yield "prefetch", f"{'on' if prefetches else 'off'}: {why}"
    is_set = "THINWIRE_NUM_THREADS" in os.environ
    source = "THINWIRE_NUM_THREADS" + ("" if is_set else " is not set")
    yield "threads", f"{_core.num_threads()} per rank ({source})"
    for name, has, why_not in _core.backends():
        # A wheel has no MPI inside; mpi4py, below, stands for it.
        if name != "mpi" or not why_not:
            yield name, f"no: {why_not}" if why_not else f"yes: {has}"


def _about_packages(why_no_torch: str) -> Iterator[Line]:
    if why_no_torch:
        yield "torch", f"no: {why_no_torch}"
    else:
        import torch

        yield "torch", f"yes: {torch.__version__}"
        yield "groups", _process_groups()
        yield "devices", f"{_accelerators()}; {_devices.in_short()}"
    for name in ("mpi4py", "transformers", "accelerate", "lightning"):
        found = _version(name)
        yield name, f"yes: {found}" if found else f"no: pip install {name}"


def _why_no_torch() -> str:
    try:
        import torch.distributed as dist
    except ImportError as error:
        return f"torch cannot be imported ({error}); pip install torch"
    if not dist.is_available() or not dist.is_gloo_available():
        return "this torch was built without torch.distributed's gloo; install torch's wheel"
    return ""


def _process_groups() -> str:
    """Backends of torch.distributed that this torch has."""
    import torch.distributed as dist

    names = ("gloo", "nccl", "mpi", "ucc", "xccl")
    return " ".join(
        name for name in names if getattr(dist, f"is_{name}_available", lambda: False)()
    )


def _accelerators() -> str:
    """Returns which devices this torch finds beside the CPU."""
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        return "none beside the CPU"
    return f"{torch.accelerator.device_count()} of kind {found.type}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _gather(report: str) -> tuple[int, list[str], list[str]] | None:
    """(this rank, host and report of every rank) under a launcher. Collective."""
    if not any(name in os.environ for name in LAUNCHERS):
        return None
    import torch.distributed as dist

    from .comm import communicator_for, init_distributed

    init_distributed("gloo", verbose=False)
    communicator = communicator_for()
    try:
        hosts = communicator.gather_texts(socket.gethostname())
        return communicator.rank, hosts, communicator.gather_texts(report)
    finally:
        communicator.close()
        dist.destroy_process_group()


def _differences(hosts: list[str], reports: list[str]) -> list[str]:
    """One line for each line in which ranks of a host differ from rank 0."""
    first = reports[0].splitlines()
    ranks: dict[tuple[str, str], list[str]] = {}
    for rank, (host, report) in enumerate(zip(hosts, reports, strict=True)):
        for line in report.splitlines():
            if line not in first:
                ranks.setdefault((host, line), []).append(str(rank))
    return [
        f"differs: rank{'s' if len(those) > 1 else ''} {', '.join(those)} on {host}: {line}"
        for (host, line), those in ranks.items()
    ] or ["all ranks have the same"]


def _in_words(hosts: list[str]) -> str:
    ranks_of = Counter(hosts)
    listed = ", ".join(f"{host}: {ranks}" for host, ranks in ranks_of.items())
    hosts_in_words = "1 host" if len(ranks_of) == 1 else f"{len(ranks_of)} hosts"
    return f"{len(hosts)}, on {hosts_in_words} ({listed}); messages arrive"

# SPDX-License-Identifier: Apache-2.0
"""Lines of `python -m thinwire doctor` about Python, torch and packages."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from . import _core
from .errors import InvalidArgument


def lines(why_no_torch: str) -> Iterator[tuple[str, str]]:
    yield "timeout", _timeout(why_no_torch)
    yield "python", f"{platform.python_implementation()} {platform.python_version()}"
    if why_no_torch:
        yield "torch", f"no: {why_no_torch}"
    else:
        import torch

        yield "torch", f"yes: {torch.__version__}"
        yield "groups", _process_groups()
        yield "devices", _accelerators()
    for name in ("mpi4py", "transformers", "accelerate", "lightning", "tensorboard"):
        found = _version(name)
        yield name, f"yes: {found}" if found else f"no: pip install {name}"


def why_no_torch() -> str:
    """Returns the reason why Thinwire cannot train on this machine, or "" if it can."""
    try:
        import torch.distributed as dist
    except ImportError as error:
        return f"torch cannot be imported ({error}); pip install torch"
    if not dist.is_available() or not dist.is_gloo_available():
        return "this torch was built without torch.distributed's gloo; install torch's wheel"
    return ""


def why_not_joined() -> str:
    """Returns the reason why an optimizer could not find its ranks, or ""."""
    from .comm.groups import choice_of_backend

    try:
        choice_of_backend()
    except InvalidArgument as error:
        return str(error)
    return ""


def _timeout(why_no_torch: str) -> str:
    """Returns the time-out of a collective. Groups that are made without a time-out
    have torch's default.
    """
    if text := os.environ.get("THINWIRE_TIMEOUT"):
        try:
            seconds = _core.parse_duration(os.fsencode(text).decode(errors="replace"))
        except InvalidArgument:
            return text  # which the command refuses
        return f"{seconds:g} s per collective (THINWIRE_TIMEOUT)"
    if why_no_torch:
        return "600 s per collective"
    from torch.distributed import default_pg_timeout

    seconds = default_pg_timeout.total_seconds()
    return f"{seconds:g} s per collective, or as the process group (torch's default)"


def _process_groups() -> str:
    import torch.distributed as dist

    names = ("gloo", "nccl", "mpi", "ucc", "xccl")
    return " ".join(
        name for name in names if getattr(dist, f"is_{name}_available", lambda: False)()
    )


def _accelerators() -> str:
    """Returns a text about devices beside the CPU, the kind of copies, and a leader's
    threads.
    """
    import torch

    from ._staging import Staging
    from .comm.host_group import threads_of_leader

    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        return "none beside the CPU"
    why = Staging(torch.device(found.type, 0)).why_synchronous
    copies = f"copies are synchronous, and so slower: {why}" if why else "pinned memory"
    count = torch.accelerator.device_count()
    threads = threads_of_leader(0)
    leaders = f"; {threads} threads for the leader of a host" if threads else ""
    return f"{count} of kind {found.type}, {copies}{leaders}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""

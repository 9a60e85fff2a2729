# SPDX-License-Identifier: Apache-2.0
"""The choice between averages in host memory and on the gradients' device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from .. import _core
from .._agreement import gathered
from .._log import logger
from ..comm.device_groups import DeviceGroups, backend_for
from ..errors import CommFailure, InvalidArgument
from ._codec import BLOCK
from ._exchange import Exchange

_THROUGH_THE_HOST = ("gloo", "mpi", "ucc")
"""Backends that copy a device's tensors to the host themselves."""


def require_path(path: Any) -> None:
    """Raises InvalidArgument for an argument `path` that does not exist. Local."""
    if path not in ("auto", "host", "device"):
        raise InvalidArgument(f"path must be auto, host or device, got {path!r}")


def device_groups(
    comm: _core.Communicator,
    path: str,
    group: Any,
    tensors: Iterable[torch.Tensor],
    hierarchy: str = "flat",
    refusal: str = "",
) -> DeviceGroups | None:
    """Returns the groups in which ranks average `tensors` on their device, or None for
    averages in host memory. Collective over `comm`, which has the same ranks as
    `group`.

    `refusal` says why the caller cannot average on a device, and is "" if it can.

    Raises InvalidArgument on all ranks if `path` is "device" and a rank cannot average
    on its device.
    """
    if path == "host" or comm.size == 1:
        return None
    device = next(iter(tensors)).device
    why_not = refusal or _why_not(path, group, tensors, device)
    own = why_not or f"\0{device.type} over {backend_for(group, device)}"
    texts = gathered(comm, own)
    if len(set(texts)) > 1 and not why_not:
        other = next(text for text in texts if text != own)
        why_not = f"another rank has {other}".replace("\0", "")
    made = None
    if all(text.startswith("\0") for text in texts) and len(set(texts)) == 1:
        backend = backend_for(group, device)
        hosts = _hosts(comm, hierarchy)
        made = DeviceGroups(comm, group, device, backend, hosts)
        texts = gathered(comm, _tried(made))
        why_not = next(filter(None, texts), "")
        if why_not:
            made.close()
            made = None
    if made is None and path == "device":
        why_not = why_not or "another rank cannot average on its device"
        raise InvalidArgument(f"path must be auto or host, got device: {why_not}")
    if made is None and device.type != "cpu" and comm.rank == 0:
        logger.info("gradients are averaged in host memory: %s", why_not)
    return made


def _why_not(
    path: str, group: Any, tensors: Iterable[torch.Tensor], device: torch.device
) -> str:
    """Returns the reason why this rank cannot or should not average on its device, or
    ""."""
    if not isinstance(group, dist.ProcessGroup):
        return "process_group is no group of torch.distributed"
    others = {tensor.device for tensor in tensors} - {device}
    if others:
        return f"gradients are on {device} and on {others.pop()}"
    backend = backend_for(group, device)
    if not backend:
        return f"the process group has no backend for {device.type}"
    if path == "auto" and device.type == "cpu":
        return "gradients are on the CPU"
    if path == "auto" and backend in _THROUGH_THE_HOST:
        return f"{backend} exchanges tensors of {device.type} through the host"
    return ""


def _hosts(comm: _core.Communicator, hierarchy: str) -> list[list[int]]:
    """Returns the ranks of each host, or an empty list if each rank exchanges with
    every other.
    """
    hosts = [] if hierarchy == "flat" else comm.find_hosts(0)
    if hierarchy == "by_host" and not hosts:
        raise InvalidArgument(
            "hierarchy must be auto or flat, got by_host: there are no several hosts of "
            "equally many ranks, at least two"
        )
    return hosts


def _tried(groups: DeviceGroups) -> str:
    """Returns the reason why ranks cannot exchange bytes, or "". Collective."""
    exchange = Exchange(groups, 8)
    where = groups.device
    try:
        ranks = groups.hosts * groups.per_host
        rows = torch.ones(ranks, BLOCK, device=where)
        order = torch.arange(ranks, device=where)
        up, _ = exchange.send_up(exchange.mean_of_host(rows, order))
        down, _ = exchange.send_down(exchange.mean_between(up))
        whole = exchange.whole(down)
        same = bool((whole == whole[:1]).all()) and int(whole[0, -1]) == 254
        return "" if same else f"{groups.backend} has exchanged other bytes"
    except (RuntimeError, CommFailure) as error:
        return f"{groups.backend} exchanges no bytes of {where.type} ({error})"[:300]

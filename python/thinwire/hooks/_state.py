# SPDX-License-Identifier: Apache-2.0
"""Residuals of a hook by parameter name, which fit any number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .. import _core
from ..errors import CorruptCheckpoint
from ._average import Average

Shapes = Mapping[str, torch.Size]
_MOST = 1e30
"""The largest magnitude of a residual, as in checkpoints."""


def saved(
    comm: _core.Communicator,
    mean: Average,
    shapes: Shapes,
    backwards: int,
    restored: torch.Tensor | None,
    is_mean: bool,
) -> dict[str, Any]:
    worker, server = mean.worker_error(), mean.server_error()
    if restored is not None:
        worker = restored.to(worker.dtype)
    workers = saved_worker(comm, worker, mean.hosts, shapes, is_mean)
    comm.all_reduce(server)  # exact: each element is 0 on all ranks except one
    servers = server.split([shape.numel() for shape in shapes.values()])
    return {
        "worker": workers,
        "server": {
            name: part.view(shape)
            for (name, shape), part in zip(shapes.items(), servers, strict=True)
        },
        "backwards": torch.tensor(backwards),
    }


def saved_worker(
    comm: _core.Communicator,
    own: torch.Tensor,
    place: tuple[int, int],
    shapes: Shapes,
    is_mean: bool,
) -> dict[str, torch.Tensor]:
    """Returns by name the residuals of all ranks or hosts, or their mean. Collective."""
    index, count = place
    rows = torch.zeros(count, own.numel(), dtype=own.dtype)
    rows[index] = own
    comm.all_reduce(rows.view(-1))  # exact: ranks of a host hold parts of its row
    if is_mean:
        rows = _mean_of(rows).unsqueeze(0)
    parts = rows.split([shape.numel() for shape in shapes.values()], dim=1)
    return {
        name: part.reshape(len(rows), *shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def checked(
    state: Mapping[str, Any], shapes: Shapes, place: tuple[int, int], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Returns the worker residual, the residuals of all servers, and the number of
    backwards. `place` is the index of this rank's host and the number of hosts or, if
    flat, the rank and the number of ranks. Local.

    Raises CorruptCheckpoint naming what does not fit.
    """
    own = checked_worker(state, shapes, place, "ddp", dtype)
    check_names(state, "server", shapes, "ddp")
    server = torch.cat([state["server"][name].flatten() for name in shapes]).cpu()
    server = server.to(dtype)
    require_finite(server, "server")
    return own, server, integer("the state's 'backwards'", state.get("backwards"))


def checked_worker(
    state: Mapping[str, Any],
    shapes: Shapes,
    place: tuple[int, int],
    owner: str,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Returns the flat residual of one rank or host, or raises CorruptCheckpoint.
    Local.
    """
    if not isinstance(state, Mapping):
        raise CorruptCheckpoint(
            f"the state must be a mapping, got {type(state).__name__}"
        )
    check_names(state, "worker", shapes, owner)
    rows = {len(values) for values in state["worker"].values()}
    if len(rows) != 1 or rows == {0}:
        raise CorruptCheckpoint(
            "the state must have the same number of ranks for every parameter, at "
            f"least 1, got {sorted(rows)}"
        )
    (count_there,) = rows
    parts = [state["worker"][name].reshape(count_there, -1) for name in shapes]
    worker = torch.cat(parts, dim=1).cpu()
    index, count = place
    own = worker[index] if len(worker) == count else _mean_of(worker)
    own = own.to(dtype).contiguous()
    require_finite(own, "worker")
    return own


def description(state: Mapping[str, Any], shapes: Shapes, backwards: int = 0) -> str:
    """Returns a text that is equal on all ranks if residuals are equal. The state must
    have been checked. Local.
    """
    lines = [f"backwards {backwards}\n"]
    for part in ("worker", "server"):
        for name in shapes if part in state else ():
            values = state[part][name].detach()
            size = f"{tuple(values.shape)} {values.dtype}"
            lines.append(f"{part} of '{name}' {size}, checksum {checksum(values)}\n")
    return "".join(lines)


def checksum(values: torch.Tensor) -> str:
    flat = values.cpu().contiguous().view(-1)
    return f"{_core.checksum(flat.view(torch.uint8)):016x}"


def require_finite(values: torch.Tensor, part: str, most: float = _MOST) -> None:
    if not bool(values.isfinite().all()):
        raise CorruptCheckpoint(f"the state's '{part}' has values not finite")
    if values.numel() > 0 and float(values.abs().max()) > most:
        # Python writes 1e+30.
        text = f"{most:g}".replace("+", "")
        raise CorruptCheckpoint(f"the state's '{part}' has values above {text}")


def integer(name: str, found: Any, least: int = 0) -> int:
    """Returns an integer of a state, or raises CorruptCheckpoint. Local."""
    if isinstance(found, torch.Tensor) and found.numel() == 1:
        found = found.item()
    is_integer = isinstance(found, int) and not isinstance(found, bool)
    if not is_integer or not least <= found < 2**63:
        begin = f"-2^{(-least).bit_length() - 1}" if least < 0 else least
        raise CorruptCheckpoint(
            f"{name} must be an integer in [{begin}, 2^63), got {found!r:.60}"
        )
    return int(found)


def check_names(
    state: Mapping[str, Any], part: str, shapes: Shapes, owner: str
) -> None:
    given = state.get(part)
    if not isinstance(given, Mapping):
        raise CorruptCheckpoint(
            f"the state's '{part}' must be a mapping, got {type(given).__name__}"
        )
    differing = sorted(given.keys() ^ shapes.keys())
    if differing:
        where = "the state" if differing[0] in given else owner
        raise CorruptCheckpoint(f"parameter '{differing[0]}' is only in {where}")
    for name, shape in shapes.items():
        values = given[name]
        if not isinstance(values, torch.Tensor) or not values.is_floating_point():
            raise CorruptCheckpoint(
                f"'{name}' in the state's '{part}' must be a tensor of floats, got "
                f"{getattr(values, 'dtype', type(values).__name__)}"
            )
        if values.layout != torch.strided:
            raise CorruptCheckpoint(
                f"'{name}' in the state's '{part}' must be dense, got {values.layout}"
            )
        if values.is_meta or (part == "worker" and values.dim() == 0):
            raise CorruptCheckpoint(
                f"'{name}' in the state's '{part}' must have values, and ranks as "
                "first dimension"
            )
        found = given[name].shape[1:] if part == "worker" else given[name].shape
        if found != shape:
            raise CorruptCheckpoint(
                f"'{name}' in the state's '{part}' must have shape {tuple(shape)}, got "
                f"{tuple(found)}"
            )


def _mean_of(rows: torch.Tensor) -> torch.Tensor:
    """Returns the mean over ranks, summed in rank order and rounded once."""
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for row in rows:
        total += row
    return (total / len(rows)).to(rows.dtype)

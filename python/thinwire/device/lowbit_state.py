# SPDX-License-Identifier: Apache-2.0
"""The state that all low-bit optimizers share: masks, denominators and residuals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..errors import CorruptCheckpoint
from .rows import Rows
from .states import Adoption, Saved, add_blocks, add_elements, whole

if TYPE_CHECKING:
    from .freeze import Freeze
    from .lowbit import LowBitOptimizer


def served_rows(optimizer: LowBitOptimizer, rank: int) -> torch.Tensor:
    """The rows that a rank averages, in the order of their residuals."""
    model = optimizer.model
    parts = []
    for rows in model.buckets:
        share = (rows.stop - rows.start) // model.world
        first = rows.start + rank * share
        parts.append(torch.arange(first, first + share, device=model.rows.device))
    return torch.cat(parts)


def add_shared(optimizer: LowBitOptimizer, state: dict[str, Any]) -> None:
    gradients, who, denominators = (
        optimizer.gradients,
        optimizer.who,
        optimizer.denominators,
    )
    rows = optimizer.model.rows
    state["verification_is_due"] = int(optimizer.verification_is_due)
    state["clip_ratio"] = gradients.norm.ratio
    state["clip_ratio_measured"] = int(gradients.norm.measured)
    if optimizer.model.settings.lagged_clipping:
        state["clip_reference"] = gradients.lagged.reference
    state["left_out_a_step"] = int(gradients.left_out_a_step)
    if who.is_listed:
        state["participation"] = whole(rows, who.values, 1)
    heard = who.heard()
    if heard is not None:
        ones = torch.ones(len(heard), dtype=torch.uint8)
        add_elements(rows, state, "late_gradients", heard, ones)
    if denominators.values is not None:
        add_blocks(rows, state, "denominator_medians", denominators.medians)
        add_blocks(rows, state, "denominator_floors", denominators.floors)
        add_elements(
            rows, state, "heavy_factors", denominators.heavy, denominators.factors
        )
    worker, server = optimizer.momentum.worker_error, optimizer.momentum.server_error
    if worker is not None and server is not None:
        at = served_rows(optimizer, optimizer.model.exchange.rank)
        state["worker_error"] = rows.dense(worker, compressed_only=True)
        state["server_error"] = server[rows.valid(at)]


def read_shared(optimizer: LowBitOptimizer, saved: Saved) -> Adoption:
    """What add_shared() has written."""
    gradients, who, denominators = (
        optimizer.gradients,
        optimizer.who,
        optimizer.denominators,
    )
    rows = optimizer.model.rows
    is_element = rows.valid(slice(0, rows.compressed))
    due = bool(saved.integer("verification_is_due"))
    ratio, measured = (
        saved.real("clip_ratio"),
        bool(saved.integer("clip_ratio_measured")),
    )
    # A state may be of a run that clipped without it.
    reference = saved.real("clip_reference") if "clip_reference" in saved else 0.0
    left_out = "left_out_a_step" in saved and bool(saved.integer("left_out_a_step"))
    values = is_element.to(torch.uint8)
    if "participation" in saved:
        values = saved.of_compressed("participation", torch.uint8)
        if int(values.max()) > 2:
            raise CorruptCheckpoint(
                f"state array 'participation' must hold values up to 2, got {int(values.max())}"
            )
    heard = saved.elements("late_gradients") if "late_gradients" in saved else None
    is_fitted = "denominator_medians" in saved
    if is_fitted:
        medians = saved.of_blocks("denominator_medians", 1.0)
        floors = saved.of_blocks("denominator_floors", 0.0)
        d = torch.where(is_element, saved.of_compressed("denominator"), 1.0)
        heavy = saved.elements("heavy_factors")
        factors = saved.array("heavy_factors", torch.float32, len(heavy))
    residuals = _read_residuals(optimizer, saved)

    def adopt() -> None:
        optimizer.verification_is_due = due
        gradients.norm.ratio, gradients.norm.measured = ratio, measured
        gradients.lagged.reference = reference
        gradients.left_out_a_step = left_out
        who.set(values)
        who.is_listed = "participation" in saved
        if heard is not None:
            who.load_heard(heard)
        denominators.values = None
        if is_fitted:
            denominators.values = d
            denominators.medians, denominators.floors = medians, floors
            denominators.heavy, denominators.factors = heavy, factors
        optimizer.momentum.units = None
        optimizer.momentum.worker_error, optimizer.momentum.server_error = residuals

    return adopt


def _read_residuals(
    optimizer: LowBitOptimizer, saved: Saved
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if "worker_error" not in saved:
        return None, None
    rows, dtype = optimizer.model.rows, optimizer.model.settings.residual_dtype
    count = sum(n for _, _, n in rows.blocks())
    worker = rows.place(saved.array("worker_error", dtype, count), compressed_only=True)
    at = served_rows(optimizer, optimizer.model.exchange.rank)
    places = rows.valid(at)
    own = saved.array("server_error", dtype, int(places.sum()))
    server = rows.zeros(len(at), dtype)
    server[places] = own
    return worker, server


# ---- of 1-bit Adam and 1-bit LAMB


def add_freeze(
    optimizer: LowBitOptimizer, freeze: Freeze, state: dict[str, Any]
) -> None:
    state["frozen_at"] = freeze.at
    state["exp_avg_sq_norms"] = torch.tensor(freeze.norms, dtype=torch.float64)
    if freeze.is_frozen:
        state["denominator"] = whole(optimizer.model.rows, optimizer.denominators.d)


def read_freeze(freeze: Freeze, saved: Saved) -> Adoption:
    at, norms = saved.integer("frozen_at"), saved.values("exp_avg_sq_norms")
    needed = "denominator_medians" if at > 0 else "exp_avg_sq"
    if needed not in saved and saved.rows.elements > 0:
        raise CorruptCheckpoint(f"the state has no '{needed}'")

    def adopt() -> None:
        freeze.at, freeze.norms = at, norms

    return adopt


# ---- residuals of the native optimizer, whose ranks serve other blocks


def native_servers(rows: Rows, world: int, bucket_elements: int) -> list[int]:
    """Of every compressed row that has elements, the rank that averages it in the C++ library:
    compress/block_layout.cpp."""
    sizes = [size for _, _, size in rows.blocks()]
    servers: list[int] = []
    while len(servers) < len(sizes):
        first = end = len(servers)
        elements = 0
        while end < len(sizes) and (
            end == first or elements + sizes[end] <= bucket_elements
        ):
            elements += sizes[end]
            end += 1
        before, server = 0, 0
        for size in sizes[first:end]:
            while server + 1 < world and before * world >= elements * (server + 1):
                server += 1
            servers.append(server)
            before += size
    return servers


def native_rows(optimizer: LowBitOptimizer) -> torch.Tensor:
    """The rows that this rank serves in the C++ library."""
    model = optimizer.model
    servers = native_servers(model.rows, model.world, model.settings.bucket_elements)
    own = [
        row
        for (row, _, _), server in zip(model.rows.blocks(), servers, strict=True)
        if server == model.exchange.rank
    ]
    return torch.tensor(own, device=model.rows.device).long()


def moved_server_error(
    optimizer: LowBitOptimizer, error: torch.Tensor, at: torch.Tensor, to: torch.Tensor
) -> torch.Tensor:
    """Collective: residuals of the elements in rows `at`, of which every rank has its own, as
    those of rows `to`."""
    model = optimizer.model
    rows = model.rows
    full = rows.zeros(rows.compressed)
    own = full[at]
    own[rows.valid(at)] = error.float()
    full[at] = own
    model.exchange.sum_(full, True)
    return full[to][rows.valid(to)].to(error.dtype)

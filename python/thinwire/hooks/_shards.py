# SPDX-License-Identifier: Apache-2.0
"""FSDP2's layout of the gradients in a reduce-scatter.

Dimension 0 of each parameter is padded and cut into one chunk per rank. Row r of the
buffer contains chunk r of all parameters. Versions of torch differ in the order of
parameters and in the object that stores the mixed-precision policy. This module looks
at the attributes of torch's objects instead of the version.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from ..errors import FailedPrecondition, InvalidArgument

_DTYPES = (torch.float32, torch.bfloat16)
_NEEDED = ("set_custom_reduce_scatter", "set_reduce_scatter_unused_params")
_DEFAULT = "DefaultReduceScatter"
_RUN_WITH = "which was run with torch 2.13 and 2.14.1"
_ORDER = "_reduce_scatter_param_indices"
Piece = tuple[int, int, int, int, int]
"""Offset in the buffer, in the owner's result and in the residual; size; owner's rank."""


@dataclass
class Part:
    module: Any
    name: str
    size: int
    """Elements of the buffer, padding included."""
    ranks: int
    pieces: list[Piece]
    places: list[tuple[str, Any, int]]
    """Name and FSDPParam of each parameter, and its offset in a rank's result."""

    def misplaced(self) -> str | None:
        """Returns the name of a parameter whose gradient FSDP2 has read from an
        unexpected place of the result, or None. Local, after a backward.

        Only views of the result, or of a copy of it in the gradient's dtype, are
        compared; offloaded gradients, for example, are skipped.
        """
        row = self.size // self.ranks
        for name, one, offset in self.places:
            gradient = one.sharded_param.grad
            if gradient is None or gradient.to_local().numel() == 0:
                continue
            values = gradient.to_local()
            is_view = values.untyped_storage().nbytes() == row * values.element_size()
            if is_view and values.storage_offset() != offset:
                return name
        return None


@dataclass
class Sharded:
    parts: list[Part]
    parameters: list[torch.nn.Parameter]
    """Parameters that need a gradient, in the order of module.parameters()."""
    shapes: dict[str, torch.Size]
    """Unsharded shapes of these parameters by name, in the order of the residuals."""
    description: str
    """Text that is equal on all ranks if the layout is."""


def group_of(module: Any) -> dist.ProcessGroup:
    """Returns the group over which the parameters are sharded. Local.

    Raises InvalidArgument if no parameter is sharded, or if the device mesh has more
    than one dimension. Raises FailedPrecondition after a forward that has left all
    parameters unsharded.
    """
    for name, parameter in module.named_parameters():
        if isinstance(parameter, DTensor) and parameter.requires_grad:
            mesh = parameter.device_mesh
            if mesh.ndim != 1:
                raise InvalidArgument(
                    "module: parameters must be sharded over a mesh of one dimension, "
                    f"got {mesh.ndim} for '{name}'"
                )
            return mesh.get_group()
    for inner in module.modules():
        if isinstance(inner, FSDPModule) and _needs_gradients(inner):
            raise FailedPrecondition(
                "module: fsdp_hook() needs sharded parameters, but they are whole: call it "
                "before the first forward"
            )
    raise InvalidArgument("module: no parameter that is sharded needs a gradient")


def _needs_gradients(module: FSDPModule) -> bool:
    """Returns whether FSDP2 has sharded parameters that need a gradient. The answer is
    right even while the module holds unsharded parameters. Returns False if the
    internals of this FSDP2 are not known.
    """
    try:
        groups = module._get_fsdp_state()._fsdp_param_groups
        shards = [one.sharded_param for group in groups for one in group.fsdp_params]
    except AttributeError:
        return False
    return any(shard.requires_grad for shard in shards)


def sharded(module: Any, ranks: int) -> Sharded:
    """Returns the layout of all FSDP modules inside `module`. Local.

    Raises InvalidArgument and FailedPrecondition like fsdp_hook().
    """
    missing = [name for name in _NEEDED if not hasattr(FSDPModule, name)]
    if missing:
        raise FailedPrecondition(
            f"fsdp_hook(), {_RUN_WITH}, cannot use torch {torch.__version__}: its "
            f"FSDPModule has no {missing[0]}"
        )
    try:
        return _layout(module, ranks)
    except (AttributeError, TypeError, LookupError) as error:
        raise unknown(str(error)) from None


def unknown(what: str) -> FailedPrecondition:
    """Returns an error about an FSDP2 whose layout is not known."""
    return FailedPrecondition(
        f"fsdp_hook(), {_RUN_WITH}, does not know the FSDP2 of torch "
        f"{torch.__version__}: {what}"
    )


def _layout(module: Any, ranks: int) -> Sharded:
    named = dict(module.named_parameters())
    names = {id(parameter): name for name, parameter in named.items()}
    groups = _groups(module)
    over = group_of(module)
    units: dict[str, Any] = {}
    orders: list[dict[str, Any]] = []
    for name, _, group in groups:
        orders.append({})
        dtypes: dict[torch.dtype, str] = {}
        for one in _packed(name, group):
            parameter = one.sharded_param
            if id(parameter) not in names:
                raise FailedPrecondition(
                    f"module: fsdp_hook() needs sharded parameters, but '{name}' has "
                    "whole ones: call it before the first forward"
                )
            key = names[id(parameter)]
            _require_supported(key, parameter, over)
            dtypes[_reduced_in(key, parameter, _policy(group, one))] = key
            orders[-1][key] = one
            units[key] = parameter
        if len(dtypes) > 1:
            (first, one_key), (second, other) = list(dtypes.items())[:2]
            raise InvalidArgument(
                f"module: gradients of '{name}' must be reduced in one dtype, got {first} "
                f"for '{one_key}' and {second} for '{other}'"
            )
    shapes = {name: p.shape for name, p in named.items() if name in units}
    sizes = [shape.numel() for shape in shapes.values()]
    begins = dict(zip(shapes, accumulate(sizes, initial=0), strict=False))
    parts = [
        _part(owner, name, order, shapes, begins, ranks)
        for (name, owner, _), order in zip(groups, orders, strict=True)
        if order
    ]
    lines = [
        f"{part.name}: {name} {tuple(shapes[name])} {units[name].dtype}\n"
        for part, order in zip(parts, filter(None, orders), strict=True)
        for name in order
    ]
    return Sharded(
        parts, [named[name] for name in shapes], shapes, "".join(sorted(lines))
    )


def _groups(module: Any) -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    seen: set[int] = set()
    for name, inner in module.named_modules():
        if not isinstance(inner, FSDPModule):
            continue
        name = name or "module"
        groups = list(inner._get_fsdp_state()._fsdp_param_groups)
        comms = [type(group._reduce_scatter_comm).__name__ for group in groups]
        if len(groups) > 1:
            raise InvalidArgument(
                f"module: '{name}' must have one group of parameters, got {len(groups)}: "
                "FSDP2 takes no reduce-scatter of another kind then"
            )
        for group, comm in zip(groups, comms, strict=True):
            if comm != _DEFAULT:
                raise FailedPrecondition(
                    f"module: '{name}' has a reduce-scatter of its own already, {comm}"
                )
            if id(group) not in seen:  # fully_shard([a, b]) makes one for both
                found.append((name, inner, group))
            seen.add(id(group))
    return found


def _packed(name: str, group: Any) -> list[Any]:
    """Returns the FSDPParams that need a gradient, in the order of the buffer.

    torch 2.13 and 2.14 pack parameters in the group's order. 2.15 keeps a list of their
    indices in the group.
    """
    own = list(group.fsdp_params)
    order = getattr(group, _ORDER, None)
    if order is None:
        order = range(len(own))
    packed = list(order)
    needed = {k for k, one in enumerate(own) if one.sharded_param.requires_grad}
    is_known = all(type(k) is int and 0 <= k < len(own) for k in packed)
    if not is_known or len({*packed}) < len(packed) or not needed <= {*packed}:
        raise unknown(f"{_ORDER} of '{name}' is {packed}")
    return [own[k] for k in packed if k in needed]


def _policy(group: Any, one: Any) -> Any:
    """Returns the mixed-precision policy of a parameter. torch 2.13 and 2.14 use the
    group's policy, while in 2.15 only parameters have one.
    """
    return group.mp_policy if hasattr(group, "mp_policy") else one.mp_policy


def _require_supported(name: str, parameter: Any, over: dist.ProcessGroup) -> None:
    if parameter.placements != (Shard(0),) or parameter.device_mesh.ndim != 1:
        raise InvalidArgument(
            "module: parameters must be sharded over dimension 0 of one mesh, got "
            f"{parameter.placements} for '{name}'"
        )
    if parameter.device_mesh.get_group() != over:
        raise InvalidArgument(
            f"module: all parameters must be sharded over one group, but '{name}' has "
            "another one"
        )


def _reduced_in(name: str, parameter: Any, policy: Any) -> torch.dtype:
    """Returns the dtype of a parameter's gradient in the buffer."""
    dtype: torch.dtype = policy.reduce_dtype or policy.param_dtype or parameter.dtype
    require_dtype(name, dtype)
    return dtype


def require_dtype(name: str, dtype: torch.dtype) -> None:
    """Raises InvalidArgument for a dtype in which gradients cannot be averaged. Local."""
    if dtype not in _DTYPES:
        raise InvalidArgument(
            f"module: gradients must be reduced in float32 or bfloat16, got {dtype} for "
            f"'{name}': pass MixedPrecisionPolicy(reduce_dtype=torch.float32)"
        )


def _part(
    module: Any,
    name: str,
    order: dict[str, Any],
    all_shapes: dict[str, torch.Size],
    begins: dict[str, int],
    ranks: int,
) -> Part:
    """Returns the layout of the reduce-scatter of the FSDPParams in `order`. `begins`
    contains the offsets of parameters in the residual.
    """
    shapes = {key: all_shapes[key] for key in order}
    chunks = [-(-shape[0] // ranks) for shape in shapes.values()]
    widths = [shape[1:].numel() for shape in shapes.values()]
    row = sum(chunk * width for chunk, width in zip(chunks, widths, strict=True))
    pieces: list[Piece] = []
    places: list[tuple[str, Any, int]] = []
    to = 0
    for (key, shape), chunk, width in zip(shapes.items(), chunks, widths, strict=True):
        for rank in range(ranks):
            first, last = (min(shape[0], chunk * r) for r in (rank, rank + 1))
            size = (last - first) * width
            if size > 0:
                pieces.append(
                    (rank * row + to, to, begins[key] + first * width, size, rank)
                )
        places.append((key, order[key], to))
        to += chunk * width
    return Part(module, name, ranks * row, ranks, pieces, places)

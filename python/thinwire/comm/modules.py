# SPDX-License-Identifier: Apache-2.0
"""Functions for modules that are independent of the optimizer."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .. import _core
from ..errors import FailedPrecondition
from .calls import in_call
from .groups import communicator_for


@in_call("broadcast_buffers()")
@torch.no_grad()
def broadcast_buffers(module: torch.nn.Module, process_group: Any = None) -> None:
    """Sends rank 0's buffers (BatchNorm's means, ...) to all ranks, bit for bit.
    Collective.

    process_group: the argument of the optimizers. If the given group of
      torch.distributed has no backend for a device, the device's buffers go through
      host memory.

    Raises InvalidArgument on all ranks if buffers differ in name, shape, dtype or kind of
    device. Raises CommFailure if ranks are lost, or in other calls.
    """
    buffers = list(module.named_buffers())
    text = "".join(
        f"{name} {tuple(b.shape)} {b.dtype} {b.device.type}\n" for name, b in buffers
    )
    if process_group is None and dist.is_initialized():
        process_group = dist.group.WORLD
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for _, buffer in buffers:
        by_device.setdefault(buffer.device, []).append(buffer)
    if isinstance(process_group, dist.ProcessGroup):
        comm = communicator_for(process_group)
        try:
            comm.require_same("the buffers of the module", text)
        finally:
            comm.close()
        for tensors in by_device.values():
            values = bytes_of(tensors).to(_reached_by(process_group, tensors[0].device))
            dist.broadcast(
                values, dist.get_global_rank(process_group, 0), process_group
            )
            write_bytes(values, tensors)
        return
    group = communicator_for(process_group)
    try:
        group.require_same("the buffers of the module", text)
        for tensors in by_device.values():
            values = bytes_of(tensors).cpu()
            group.broadcast(values, 0)
            write_bytes(values, tensors)
    finally:
        if not isinstance(process_group, _core.Communicator):
            group.close()


def local_gradients(ddp: DistributedDataParallel) -> None:
    """Switches off the averaging of gradients by DistributedDataParallel. Local; before
    the first backward.

    Optimizers of this package need each rank's own gradients, because they do the
    averaging.

    Raises FailedPrecondition if `ddp` already has a communication hook.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks

    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(
            f"ddp must be a DistributedDataParallel, got {type(ddp).__name__}: without one "
            "gradients are local already"
        )
    register_hook("local_gradients", ddp, None, debugging_hooks.noop_hook)


def register_hook(
    caller: str, ddp: DistributedDataParallel, state: object, hook: Any
) -> None:
    """Registers a hook of DDP. Raises FailedPrecondition if `ddp` already has a hook,
    or does not call hooks with buckets.
    """
    if getattr(ddp, "_use_python_reducer", False):
        raise FailedPrecondition(
            f"ddp: {caller}() needs torch's own reducer, but "
            "torch._dynamo.config.optimize_ddp was 'python_reducer' when the module was "
            "wrapped: set it to True, torch's default, and wrap the module anew"
        )
    try:
        ddp.register_comm_hook(state, hook)
    except RuntimeError as error:
        raise FailedPrecondition(
            f"ddp: {caller}() needs a DistributedDataParallel without a communication "
            f"hook; wrap the module anew ({str(error).splitlines()[0]})"
        ) from None


def _reached_by(group: dist.ProcessGroup, device: torch.device) -> torch.device:
    """Returns `device`, or the CPU if the group has a backend only for the CPU."""
    config = dist.BackendConfig(dist.Backend(dist.get_backend_config(group)))
    known = config.get_device_backend_map()
    return device if device.type in known or "cpu" not in known else torch.device("cpu")


def bytes_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Returns the tensors as bytes, so that a backend need not support their dtypes."""
    return torch.cat(
        [t.detach().reshape(-1).contiguous().view(torch.uint8) for t in tensors]
    )


def write_bytes(values: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    for tensor, part in zip(tensors, torch.split(values, sizes), strict=True):
        tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))

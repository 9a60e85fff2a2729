# SPDX-License-Identifier: Apache-2.0
"""Arguments of the hooks, and the parameters that DistributedDataParallel averages."""

from __future__ import annotations

from typing import NoReturn

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .. import _averages
from .._agreement import agreed
from ..comm import communicator_for
from ..errors import InvalidArgument
from ..optim import _attributes

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def require_bits(name: str, bits: int) -> None:
    """Raises InvalidArgument naming an argument that is not 4 or 8. Local."""
    if type(bits) is not int or bits not in (4, 8):
        raise InvalidArgument(f"{name} must be 4 or 8, got {bits!r}")


def require_options(bits: int, residual_dtype: torch.dtype) -> None:
    """Raises InvalidArgument for an argument of a hook that is out of range. Local."""
    require_bits("bits", bits)
    if residual_dtype not in (torch.float32, torch.bfloat16):
        raise InvalidArgument(
            f"residual_dtype must be float32 or bfloat16, got {residual_dtype}"
        )


def refuse_on_all_ranks(error: Exception) -> NoReturn:
    """Raises `error`. Other ranks of the default group that are in the same call raise
    InvalidArgument with the error's text. Collective if there is a default group.

    If the other ranks cannot be notified, a note on `error` says why.
    """

    def refuse() -> None:
        raise error

    if dist.is_available() and dist.is_initialized():
        try:
            # None would be the group of THINWIRE_COMM, in which the other ranks do not
            # wait.
            comm = communicator_for(dist.group.WORLD)
            try:
                agreed(comm, refuse)
            finally:
                comm.close()
        except Exception as failure:  # noqa: BLE001  the argument's error matters more
            if failure is not error:
                error.add_note(f"The other ranks were not told: {failure}")
    raise error


def averaged(ddp: DistributedDataParallel) -> dict[str, torch.nn.Parameter]:
    """Returns by name the parameters whose gradients DDP averages, in the order of
    ddp.module.parameters().

    Raises InvalidArgument for gradients that are sparse, complex or fp64, for experts,
    and if no parameter needs a gradient. Raises FailedPrecondition if a Thinwire
    optimizer averages the gradients.
    """
    for name, module in ddp.module.named_modules():
        if getattr(module, "sparse", False) and isinstance(
            module, (torch.nn.Embedding, torch.nn.EmbeddingBag)
        ):
            raise InvalidArgument(
                f"ddp: gradients must be dense, but '{name}' makes sparse ones: give it "
                "sparse=False"
            )
    found = {
        name: parameter
        for name, parameter in ddp.module.named_parameters()
        if parameter.requires_grad and name not in ddp.parameters_to_ignore
    }
    if not found:
        raise InvalidArgument("ddp: no parameter of its module needs a gradient")
    for name, parameter in found.items():
        if parameter.dtype not in _DTYPES:
            raise InvalidArgument(
                "ddp: parameters must be of float32, float16 or bfloat16, got "
                f"{parameter.dtype} for '{name}'"
            )
        if _attributes.is_expert(parameter) and ddp.process_group.size() > 1:
            raise InvalidArgument(
                f"ddp: '{name}' is marked as an expert (allreduce=False), and DDP averages it "
                "over all ranks: name it in DistributedDataParallel."
                "_set_params_and_buffers_to_ignore_for_model() before DDP is made"
            )
    _averages.require_free(found.values(), "hook")
    return found


def description(parameters: dict[str, torch.nn.Parameter]) -> str:
    return "".join(f"{n} {tuple(p.shape)} {p.dtype}\n" for n, p in parameters.items())


def strides_in_bucket(parameter: torch.Tensor) -> tuple[int, ...]:
    """Returns the strides of a gradient in a bucket of DDP: the strides of a dense
    parameter, and contiguous strides for others.
    """
    expected = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size > 1 and stride != expected:
            return torch.empty(parameter.shape, device="meta").stride()
        expected *= size
    return parameter.stride()


def norm_of(values: torch.Tensor) -> float:
    """Returns the norm. Uses the slower fp64 only if the square may not fit into fp32."""
    norm = float(torch.linalg.vector_norm(values, dtype=torch.float32))
    if 1e-16 < norm < torch.inf:
        return norm
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))

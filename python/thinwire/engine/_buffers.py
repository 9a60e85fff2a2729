# SPDX-License-Identifier: Apache-2.0
"""Buffers: tensors of a module that are not trained, such as running statistics."""

from __future__ import annotations

import torch

from .. import _core
from ..comm.modules import bytes_of, write_bytes


class ModuleBuffers:
    """Dense buffers. If several names share one, only the first name counts."""

    def __init__(self, module: torch.nn.Module, comm: _core.Communicator) -> None:
        """Raises InvalidArgument on all ranks if their buffers differ. Collective."""
        self._comm = comm
        self._buffers: list[tuple[torch.nn.Module, str]] = []
        lines, seen = [], set()
        for path, owner in module.named_modules():
            for name, buffer in owner.named_buffers(path, recurse=False):
                if id(buffer) in seen or not _is_dense(buffer):
                    continue
                seen.add(id(buffer))
                lines.append(f"{name} {buffer.dtype} {tuple(buffer.shape)}\n")
                self._buffers.append((owner, name.rsplit(".", 1)[-1]))
        comm.require_same("the module's buffers", "".join(lines))

    def convert(self, dtype: torch.dtype) -> None:
        for buffer in self._tensors():
            if buffer.is_floating_point() and buffer.dtype != dtype:
                buffer.data = buffer.detach().to(dtype)

    @torch.no_grad()
    def make_equal(self, how: _core.Buffers) -> None:
        """Makes buffers equal; only floats are averaged, in float64. Collective."""
        if self._comm.size == 1 or how == _core.Buffers.as_they_are:
            return
        buffers = [b for b in self._tensors() if b.numel() > 0]
        averages = how == _core.Buffers.average
        averaged = [b for b in buffers if averages and b.is_floating_point()]
        sent = [b for b in buffers if not (averages and b.is_floating_point())]
        self._broadcast(sent)
        self._average(averaged)

    @torch.no_grad()
    def send_frozen(self, module: torch.nn.Module, trained: list[torch.Tensor]) -> None:
        """Sends rank 0's untrained parameters, or raises on all. Collective."""
        known = {id(tensor) for tensor in trained}
        frozen = {
            name: parameter.detach()
            for name, parameter in module.named_parameters()
            if id(parameter) not in known and _is_dense(parameter)
        }
        self._comm.require_same(
            "the module's frozen parameters",
            "".join(f"{n} {p.dtype} {tuple(p.shape)}\n" for n, p in frozen.items()),
        )
        if self._comm.size > 1:
            self._broadcast([p for p in frozen.values() if p.numel() > 0])

    def _tensors(self) -> list[torch.Tensor]:
        # Looked up by name, because to() and assignments replace tensors.
        found = [getattr(owner, name) for owner, name in self._buffers]
        return [b for b in found if isinstance(b, torch.Tensor) and _is_dense(b)]

    def _broadcast(self, buffers: list[torch.Tensor]) -> None:
        if not buffers:
            return
        everything = bytes_of([b.cpu() for b in buffers])
        self._comm.broadcast(everything, 0)
        write_bytes(everything, buffers)

    def _average(self, buffers: list[torch.Tensor]) -> None:
        if not buffers:
            return
        on_host = [b.to("cpu", torch.float64) for b in buffers]
        everything = torch.cat([b.reshape(-1) for b in on_host])
        self._comm.all_reduce(everything, mean=True)
        means = everything.split([b.numel() for b in buffers])
        for buffer, mean in zip(buffers, means, strict=True):
            buffer.copy_(mean.view(buffer.shape))


def _is_dense(buffer: torch.Tensor) -> bool:
    return not buffer.is_meta and buffer.layout == torch.strided

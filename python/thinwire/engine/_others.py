# SPDX-License-Identifier: Apache-2.0
"""Tensors of a module that are not trained, but equal on all ranks and saved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from .. import _core
from .._log import logger
from ..comm.modules import bytes_of, write_bytes
from ..optim._notices import Notices

_TYPES = {
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.uint8,
}
_OTHER_TYPES = {
    torch.bool: ("BOOL", torch.uint8),
    torch.int8: ("I8", torch.uint8),
    torch.float8_e4m3fn: ("F8_E4M3", torch.uint8),
    torch.float8_e4m3fnuz: ("F8_E4M3FNUZ", torch.uint8),
    torch.float8_e5m2: ("F8_E5M2", torch.uint8),
    torch.float8_e5m2fnuz: ("F8_E5M2FNUZ", torch.uint8),
    torch.int16: ("I16", torch.float16),
    torch.uint16: ("U16", torch.float16),
    torch.uint32: ("U32", torch.int32),
    torch.uint64: ("U64", torch.int64),
    torch.complex64: ("C64", torch.int64),
}
"""Types that C++ lacks, with names in files and the types that carry their bytes."""


class ModuleOthers:
    """Untrained parameters, persistent buffers, and additional names of tensors. The
    tensors are dense and of a type that files support. A tensor is saved under its
    first name in the order of registration, parameters before buffers.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        trained: Sequence[torch.Tensor],
        names: Sequence[str],
        rank: int,
    ) -> None:
        """Finds the tensors. Local."""
        self._module = module
        self._trained = {id(t): name for t, name in zip(trained, names, strict=True)}
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._unknown: list[str] = []
        """Names of tensors that files cannot hold."""
        self._rank = rank
        self.describe()
        self._copies.clear()

    def warn_at_save(self, notices: Notices) -> None:
        """Warns on rank 0 about tensors that files cannot hold, in the first save.
        Local.
        """
        if self._unknown:
            notices.unsaved(self._text("saved"))

    def add_note_of_load(self, notes: list[str]) -> None:
        """Adds a line that names the tensors that files cannot hold, if any. Local."""
        if self._unknown:
            notes.append(self._text("loaded"))
            if self._rank == 0:
                logger.warning("%s", notes[-1])

    def _text(self, done: str) -> str:
        names = ", ".join(f"'{name}'" for name in self._unknown)
        return f"not {done}, because files have no such type of tensors: {names}"

    def describe(self) -> _core.Others:
        """Returns views of the tensors, or of copies until the next call. Local."""
        self._copies.clear()
        self._unknown.clear()
        names: dict[int, str] = {}
        tensors: list[tuple[str, list[int], torch.Tensor, str]] = []
        aliases: list[tuple[str, str]] = []
        for name, tensor in self._named():
            known = names.get(id(tensor))
            if known is not None:
                if known:
                    aliases.append((name, known))
                continue
            names[id(tensor)] = self._trained.get(id(tensor), name)
            if id(tensor) in self._trained:
                continue  # it is saved with the optimizer's states
            if not _is_known(tensor):
                names[id(tensor)] = ""  # so that its other names are skipped
                self._unknown.append(name)
                continue
            tensors.append((name, list(tensor.shape), *self._flat(tensor)))
        return _core.Others(tensors, aliases)

    def write_back(self) -> None:
        with torch.no_grad():
            for tensor, values in self._copies:
                tensor.copy_(values)
        self._copies.clear()

    def _named(self) -> Iterable[tuple[str, torch.Tensor]]:
        yield from self._module.named_parameters(remove_duplicate=False)
        for path, owner in self._module.named_modules(remove_duplicate=False):
            for name, buffer in owner._buffers.items():
                if buffer is not None and _is_persistent(owner, name):
                    yield f"{path}.{name}" if path else name, buffer

    def _flat(self, tensor: torch.Tensor) -> tuple[torch.Tensor, str]:
        values = tensor.detach()
        if not values.is_contiguous() or values.device.type != "cpu":
            values = values.to("cpu").clone(memory_format=torch.contiguous_format)
            self._copies.append((tensor.detach(), values))
        name, carrier = _OTHER_TYPES.get(tensor.dtype, ("", tensor.dtype))
        return values.view(-1).view(carrier), name


def _is_known(tensor: torch.Tensor) -> bool:
    return (
        _is_dense(tensor)
        and (tensor.dtype in _TYPES or tensor.dtype in _OTHER_TYPES)
        and not hasattr(tensor, "__tensor_flatten__")  # one made of several tensors
    )


class ModuleBuffers:
    """Dense buffers of a module. If a buffer has several names, only the first counts."""

    def __init__(self, module: torch.nn.Module, comm: _core.Communicator) -> None:
        """Raises InvalidArgument on all ranks if their buffers differ. Collective."""
        self._comm = comm
        self._buffers: dict[str, tuple[torch.nn.Module, str]] = {}
        lines, seen = [], set()
        for path, owner in module.named_modules():
            for name, buffer in owner.named_buffers(path, recurse=False):
                if id(buffer) in seen or not _is_dense(buffer):
                    continue
                seen.add(id(buffer))
                lines.append(f"{name} {buffer.dtype} {tuple(buffer.shape)}\n")
                self._buffers[name] = (owner, name.rsplit(".", 1)[-1])
        comm.require_same("the module's buffers", "".join(lines))

    def convert(self, dtype: torch.dtype) -> list[str]:
        """Converts persistent fp32 buffers, and returns their names. Local.
        Non-persistent buffers do not change, because they are tables that the program
        computes, such as rotary embeddings.
        """
        names = []
        for path, (owner, name) in self._buffers.items():
            buffer = getattr(owner, name)
            if buffer.dtype == torch.float32 and _is_persistent(owner, name):
                buffer.data = buffer.detach().to(dtype)
                names.append(path)
        return names

    @torch.no_grad()
    def make_equal(self, how: _core.Buffers) -> None:
        """Makes buffers equal on all ranks, unless `how` is as_they_are. Collective if
        there are any. Integers, flags and complex numbers are always copied from rank
        0. Means are computed in float64 and in rank order.
        """
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
        """Sends rank 0's untrained parameters to all ranks. Collective.

        Raises InvalidArgument on all ranks if they differ in names, types or shapes.
        """
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
        # Tensors are looked up by name, because to() and assignments replace them.
        found = [getattr(owner, name) for owner, name in self._buffers.values()]
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


def _is_persistent(owner: torch.nn.Module, name: str) -> bool:
    return name not in owner._non_persistent_buffers_set


def _is_dense(buffer: torch.Tensor) -> bool:
    return not buffer.is_meta and buffer.layout == torch.strided

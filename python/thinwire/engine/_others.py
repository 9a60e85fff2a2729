# SPDX-License-Identifier: Apache-2.0
"""Tensors of a module in a checkpoint, beside its trained parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from .. import _core
from .._log import logger

_TYPES = {
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
}


class ModuleOthers:
    """Untrained parameters, persistent buffers and aliases that files support."""

    def __init__(
        self,
        module: torch.nn.Module,
        trained: Sequence[torch.Tensor],
        names: Sequence[str],
        rank: int,
    ) -> None:
        """Finds the tensors. Local. Rank 0 logs those that are not saved."""
        self._module = module
        self._trained = {id(t): name for t, name in zip(trained, names, strict=True)}
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._logs = rank == 0
        self.describe()
        self._copies.clear()
        self._logs = False

    def describe(self) -> _core.Others:
        """Returns views of the tensors, or of copies until the next call. Local."""
        self._copies.clear()
        names: dict[int, str] = {}
        tensors: list[tuple[str, list[int], torch.Tensor, bool]] = []
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
                names[id(tensor)] = ""  # further names of it are skipped too
                self._log(name)
                continue
            flat, is_bool = self._flat(tensor)
            tensors.append((name, list(tensor.shape), flat, is_bool))
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
                if buffer is not None and name not in owner._non_persistent_buffers_set:
                    yield f"{path}.{name}" if path else name, buffer

    def _flat(self, tensor: torch.Tensor) -> tuple[torch.Tensor, bool]:
        values = tensor.detach()
        if not values.is_contiguous() or values.device.type != "cpu":
            values = values.to("cpu").clone(memory_format=torch.contiguous_format)
            self._copies.append((tensor.detach(), values))
        flat = values.view(-1)
        if tensor.dtype == torch.bool:
            return flat.view(torch.uint8), True
        return flat, False

    def _log(self, name: str) -> None:
        if self._logs:
            logger.warning(
                "'%s' is no dense tensor of a type that checkpoints know: not saved",
                name,
            )


def _is_known(tensor: torch.Tensor) -> bool:
    return (
        not tensor.is_meta and tensor.layout == torch.strided and tensor.dtype in _TYPES
    )

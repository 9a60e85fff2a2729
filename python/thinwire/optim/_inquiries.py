# SPDX-License-Identifier: Apache-2.0
"""What an optimizer can be asked beside its report. All of it is local."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.dlpack import from_dlpack

from .. import _core

if TYPE_CHECKING:
    from ._native import Native


class Inquiries:
    """Getters of all optimizers."""

    if TYPE_CHECKING:

        @property
        def _made(self) -> Native: ...

    def get_lamb_coeffs(self) -> list[float]:
        """Local: the factors by which the last step multiplied the learning rate of each
        parameter, in the order of the parameters that are trained: LAMB's trust ratios, and
        in compressed steps 1-bit LAMB's scaling coefficients. 0 before the first step; empty
        unless the optimizer is LAMB or 1-bit LAMB."""
        return list(self._made.optimizer.lamb_coeffs())

    def memory_use(self) -> dict[str, int]:
        """Local: bytes that this rank holds: parameters, gradients, states, buckets and
        other, and peak, the largest sum of them so far. Everything that this thread made
        counts, so another optimizer of the same thread does, too; activations do not."""
        return _core.memory_use()

    def _moment(self, k: int, key: str) -> torch.Tensor | None:
        """Of parameter k, where every rank has all of it."""
        native = self._made
        tensor = native.places[k].tensor
        offset = native.layout.offsets[k]
        values = native.optimizer.state_elements(key, offset, tensor.numel())
        return None if values is None else from_dlpack(values).view(tensor.shape)

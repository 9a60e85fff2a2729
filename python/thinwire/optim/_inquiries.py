# SPDX-License-Identifier: Apache-2.0
"""Values that an optimizer returns beside its report. All of it is local."""

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
        """Returns the factors by which the last step multiplied the learning rates.
        Local.

        There is one per trained parameter, in their order. They are LAMB's trust ratios
        or, in compressed steps of 1-bit LAMB, its scaling coefficients. They are 0
        before the first step, and empty unless the optimizer is LAMB or 1-bit LAMB.
        """
        return list(self._made.optimizer.lamb_coeffs())

    def memory_use(self) -> dict[str, int]:
        """Returns the bytes that this rank holds. Local.

        The keys are parameters, gradients, states, buckets, other, and peak, the
        largest sum of them so far. All memory that this thread made counts, so another
        optimizer of the same thread does, too. Activations do not count.
        """
        return _core.memory_use()

    def _moment(self, k: int, key: str) -> torch.Tensor | None:
        """Returns a moment of parameter k if every rank has all of it."""
        native = self._made
        tensor = native.places[k].tensor
        offset = native.layout.offsets[k]
        values = native.optimizer.state_elements(key, offset, tensor.numel())
        return None if values is None else from_dlpack(values).view(tensor.shape)

# SPDX-License-Identifier: Apache-2.0
"""A module's trainable parameters in one array, and their gradients in another."""

from __future__ import annotations

from .._memory import FlatMemory
from ..errors import FailedPrecondition
from ..optim._options import DTYPES

TYPES = {native: dtype for dtype, native in DTYPES.items()}


class EngineMemory(FlatMemory):
    """FlatMemory of an engine, with or without gradients."""

    def attach_parameters(self) -> None:
        """Makes parameters and gradients views of the arrays. Called once."""
        for parameter in self.parameters:
            parameter.grad = None  # it may have another dtype
        super().attach_parameters()
        self.require_gradients(at_start=True)

    def require_gradients(self, at_start: bool) -> None:
        """Checks that every gradient is a view of the array. At the start of a window,
        when all gradients are 0, makes them views.

        Raises FailedPrecondition naming a gradient that was removed or replaced.
        """
        if not self.keeps_gradients:
            self._require_none()
            return
        for k, (parameter, view) in enumerate(
            zip(self.parameters, self._gradients, strict=True)
        ):
            gradient = parameter.grad
            if (
                gradient is not None
                and gradient.data_ptr() == view.data_ptr()
                and gradient.is_contiguous()
            ):
                continue
            if at_start:
                parameter.grad = view.view(view.shape)
                continue
            self._refuse(k, gradient is None)

    def _refuse(self, k: int, is_gone: bool) -> None:
        what = "is gone" if is_gone else "was replaced"
        raise FailedPrecondition(
            f"gradient of '{self.names[k]}' {what} inside of a window of accumulation: "
            "zero_grad() of the module or of another optimizer does that. "
            "engine.step() sets gradients to 0: remove that call"
        )

    def _require_none(self) -> None:
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if parameter.grad is not None:
                raise FailedPrecondition(
                    f"gradient of '{name}' was set after the engine was made: with "
                    "this configuration gradients are handed over and released during "
                    "backward()"
                )

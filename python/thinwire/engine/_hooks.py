# SPDX-License-Identifier: Apache-2.0
"""Gradients on their way from autograd to the native engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from .._memory import require_dense
from ..errors import FailedPrecondition
from ._memory import EngineMemory
from .leaders import Core

FOREIGN = (
    "gradients were computed by a backward() that is not the engine's, without its loss "
    "scale: call engine.backward(loss) instead of loss.backward(), and make a new engine; "
    "where a loss of another model leads through this one, freeze this one for that "
    "loss with requires_grad_(False), or detach() what it is given"
)


class Link:
    """Data that the hooks of parameters share, because parameters may outlive the
    engine.
    """

    def __init__(self, core: Core, memory: EngineMemory) -> None:
        self.core, self.memory = core, memory
        self.use: dict[str, int] = {}
        """Bytes that C++ holds for the thread on which autograd calls the hooks."""
        self.in_backward = False
        self.has_foreign_gradients = False
        self._taken: set[int] = set()
        self._handles: list[Any] = []
        own = weakref.ref(self)
        for index, tensor in enumerate(memory.parameters):
            self._handles += [
                tensor.register_post_accumulate_grad_hook(_hand_over(own, index)),
                tensor.register_hook(_require_dense(own, memory.names[index])),
            ]

    def begin(self) -> None:
        self.in_backward = True
        self._taken.clear()

    def finish(self) -> None:
        self.in_backward = False

    def cancel(self) -> None:
        self.in_backward = False
        if not self.memory.keeps_gradients:  # the refused parameter still has one
            for parameter in self.memory.parameters:
                parameter.grad = None

    def take(self, index: int, parameter: torch.Tensor) -> None:
        if not self._may_take(index):
            return
        if not self.memory.keeps_gradients:
            gradient = parameter.grad
            parameter.grad = None
            if gradient is not None and gradient.numel() > 0:
                self.core.gradient_ready(index, gradient.detach().reshape(-1))
        else:
            self.core.gradient_ready(index)

    def _may_take(self, index: int) -> bool:
        """Returns whether the gradient was computed by a backward() of the engine."""
        if not self.in_backward:
            self.has_foreign_gradients = True
            return False
        if index in self._taken:
            raise FailedPrecondition(
                f"gradient of '{self.memory.names[index]}': there were two in one backward, "
                "as with checkpoint(..., use_reentrant=True) of a module that is used twice; "
                "give use_reentrant=False"
            )
        self._taken.add(index)
        return True

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _hand_over(link: weakref.ref[Link], index: int) -> Callable[[torch.Tensor], None]:
    def hook(parameter: torch.Tensor) -> None:
        engine = link()
        if engine is not None:
            engine.take(index, parameter)

    return hook


def _require_dense(
    link: weakref.ref[Link], name: str
) -> Callable[[torch.Tensor], None]:
    # Without this hook, autograd would silently add a sparse gradient to a dense one.
    def hook(gradient: torch.Tensor) -> None:
        if link() is not None:
            require_dense(name, gradient)

    return hook

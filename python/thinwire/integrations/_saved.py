# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of optimizers beside a trainer's files, for which parameters become
equal.

Trainers save only rank 0's states, so every rank also saves a checkpoint of Thinwire.
Trainers evaluate and save models even if parameters differ between ranks, so these
functions first make parameters equal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from .. import checkpoint
from ..errors import InvalidArgument
from ..optim._base import _Optimizer


def optimizers_of(wrapped: Iterable[Any]) -> list[_Optimizer]:
    """Returns Thinwire's optimizers without the wrappers of trainers."""
    found = []
    for optimizer in wrapped:
        while not isinstance(optimizer, _Optimizer):
            inner = getattr(optimizer, "optimizer", None)
            if inner is optimizer or not isinstance(inner, torch.optim.Optimizer):
                break
            optimizer = inner
        else:
            found.append(optimizer)
    return found


def require_ours(
    name: str, optimizers: Iterable[torch.optim.Optimizer], cure: str
) -> list[_Optimizer]:
    """Returns optimizers_of(). Raises InvalidArgument for an optimizer that is not from
    Thinwire, because it would not average the local gradients.
    """
    given = list(optimizers)
    ours = optimizers_of(given)
    if len(ours) < len(given):
        raise InvalidArgument(
            f"{name}: each optimizer must be one of Thinwire's, because gradients are "
            f"left local, got {', '.join(type(one).__name__ for one in given)}; {cure}"
        )
    return ours


def synchronize(optimizers: Iterable[_Optimizer]) -> None:
    """Calls synchronize() of each optimizer that is open. Collective. Exchanges only if
    parameters differ between ranks.
    """
    for optimizer in optimizers:
        if optimizer._closer.alive:
            optimizer.synchronize()


def synchronizing(
    method: Callable[..., Any], ours: Callable[[], list[_Optimizer]]
) -> Callable[..., Any]:
    """Returns a method of a trainer that calls synchronize() first."""

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        synchronize(ours())
        return method(*args, **options)

    return call


def folder(root: str | os.PathLike[str], number: int) -> Path:
    return Path(root) / ("thinwire" if number == 0 else f"thinwire_{number}")


@contextmanager
def states_beside(optimizers: Iterable[_Optimizer]) -> Iterator[None]:
    """Makes state_dict() of each optimizer return only param_groups in its block.
    save() writes the rest, so that the trainer's files do not repeat rank 0's states.
    Local.
    """
    ours = list(optimizers)
    for optimizer in ours:
        optimizer._states_are_beside = True
    try:
        yield
    finally:
        for optimizer in ours:
            optimizer._states_are_beside = False


def save(optimizers: Iterable[_Optimizer], root: str | os.PathLike[str]) -> None:
    for number, optimizer in enumerate(optimizers):
        checkpoint.save(str(folder(root, number)), optimizer)


def load_with_state_dict(
    optimizers: Iterable[_Optimizer], root: str | os.PathLike[str]
) -> None:
    """Makes the next load_state_dict() of each optimizer load the checkpoint of save()
    in `root` instead of its argument. Local, but that load_state_dict() is collective.
    Trainers load the model first. If nothing was saved, load_state_dict() is unchanged.
    """
    for number, optimizer in enumerate(optimizers):
        saved = folder(root, number)
        if saved.is_dir():
            _load_next_time(optimizer, saved)


def _load_next_time(optimizer: _Optimizer, saved: Path) -> None:
    pending = [saved]  # a hook cannot remove itself while hooks are called

    def load(_: torch.optim.Optimizer, given: dict[str, Any]) -> dict[str, Any] | None:
        if not pending:
            return None
        checkpoint.load(str(pending.pop()), optimizer)
        # The groups of the argument apply, because a scheduler has set rates since the
        # last step.
        return {**optimizer.state_dict(), "param_groups": given["param_groups"]}

    optimizer.register_load_state_dict_pre_hook(load)

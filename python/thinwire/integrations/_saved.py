# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of optimizers beside the files of a trainer, and equal parameters in them.

Trainers save rank 0's states only. So every rank saves a checkpoint of Thinwire's.
Trainers evaluate and save models without asking whether ranks differ.
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
    """Returns Thinwire's optimizers, out of the wrappers that trainers put around them."""
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
    """Returns what optimizers_of() does. Raises InvalidArgument unless each optimizer is
    one of Thinwire's, because nothing else averages gradients that are left local.
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
    """Calls synchronize() of each optimizer that is open. Collective, and without an
    exchange unless ranks differ.
    """
    for optimizer in optimizers:
        if optimizer._closer.alive:
            optimizer.synchronize()


def synchronizing(
    method: Callable[..., Any], ours: Callable[[], list[_Optimizer]]
) -> Callable[..., Any]:
    """Returns the method of a trainer, which calls synchronize() first."""

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        synchronize(ours())
        return method(*args, **options)

    return call


def folder(root: str | os.PathLike[str], number: int) -> Path:
    return Path(root) / ("thinwire" if number == 0 else f"thinwire_{number}")


@contextmanager
def states_beside(optimizers: Iterable[_Optimizer]) -> Iterator[None]:
    """Makes state_dict() of each return only param_groups within it, because save() has
    the rest. Otherwise the trainer's files would hold rank 0's states a second time.
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
    """Makes the next load_state_dict() of each optimizer load what save() has left in
    `root`, instead of its argument. Local, but that call is collective. Trainers load
    the model before. If nothing was saved, load_state_dict() does not change.
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
        # The groups are the given ones, because a scheduler has set rates since the
        # last step.
        return {**optimizer.state_dict(), "param_groups": given["param_groups"]}

    optimizer.register_load_state_dict_pre_hook(load)

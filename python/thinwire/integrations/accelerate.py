# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate. Written for version 1.15.

    accelerator = Accelerator()
    thinwire.integrations.accelerate.attach(accelerator)
    optimizer = thinwire.OnebitAdam(model.parameters(), lr=4e-4, freeze_step=2000)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

The optimizer's `max_grad_norm` clips gradients. `accelerator.clip_grad_norm_` and
`accelerator.clip_grad_value_` are rejected, because they would clip each rank's
gradients before the optimizer averages them.

For torch optimizers, hook_gradients() makes DDP average in 4 or 8 bits.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, NoReturn

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, DistributedType
from torch.nn.parallel import DistributedDataParallel

from .. import comm
from ..amp import GradScaler
from ..errors import FailedPrecondition, InvalidArgument
from ..hooks import Hook, ddp_hook
from ..hooks._options import Options, from_environment
from . import _saved

__all__ = ["LocalGradients", "attach", "hook_gradients"]

_OTHERS = (
    DistributedType.DEEPSPEED,
    DistributedType.FSDP,
    DistributedType.MEGATRON_LM,
    DistributedType.XLA,
)


@dataclass
class LocalGradients(DistributedDataParallelKwargs):  # type: ignore[misc]
    """Settings with which DistributedDataParallel leaves gradients local."""

    def register_comm_hook(self, model: DistributedDataParallel) -> None:
        comm.local_gradients(model)


def attach(accelerator: Accelerator) -> None:
    """Prepares an accelerator for Thinwire's optimizers. Local, before `prepare()`.

    `prepare()` then wraps the model in DDP that does not average gradients, because the
    optimizer does. thinwire.GradScaler scales fp16, with the settings of the existing
    scaler. `save_state(DIR)` also writes a checkpoint of every rank's state to
    DIR/thinwire. `load_state(DIR)` loads the checkpoint on any number of ranks, and may
    follow at once, because `save_state` returns when all files exist. `save_state`,
    `save_model` and `get_state_dict` first make parameters equal on all ranks, like
    synchronize() of the optimizer, so all ranks must call them. Evaluate inside `with
    optimizer.evaluation():`; after `prepare()`, the optimizer is `optimizer.optimizer`.

    Raises FailedPrecondition if the accelerator has prepared a model, or runs
    DeepSpeed, FSDP, Megatron-LM or XLA; nothing has changed then. `prepare()` raises
    InvalidArgument for an optimizer that is not from Thinwire.
    """
    if accelerator.distributed_type in _OTHERS:
        raise FailedPrecondition(
            f"accelerator: its distributed_type is {accelerator.distributed_type.value}; "
            "Thinwire's optimizers communicate themselves and need plain data "
            "parallelism (DDP): configure Accelerate without it"
        )
    if accelerator._models:
        raise FailedPrecondition(
            "accelerator: it has prepared a model; call "
            "thinwire.integrations.accelerate.attach(accelerator) before "
            "accelerator.prepare(...)"
        )
    leave_gradients_local(accelerator)
    prepare = accelerator.prepare

    def prepare_ours(*args: Any, **options: Any) -> Any:
        given = [one for one in args if isinstance(one, torch.optim.Optimizer)]
        cure = (
            "leave out attach() and use thinwire.ddp_hook() for optimizers of torch's"
        )
        _saved.require_ours("accelerator.prepare", given, cure)
        return prepare(*args, **options)

    accelerator.prepare = prepare_ours
    # save_state() and save_model() call get_state_dict() as well.
    accelerator.get_state_dict = _saved.synchronizing(
        accelerator.get_state_dict, lambda: _ours(accelerator)
    )
    accelerator.register_save_state_pre_hook(
        lambda models, weights, root: _saved.save(_ours(accelerator), root)
    )
    save_state = accelerator.save_state

    def save_all(*args: Any, **options: Any) -> Any:
        with _saved.states_beside(_ours(accelerator)):
            path = save_state(*args, **options)
        accelerator.wait_for_everyone()  # rank 0 writes after all others have
        return path

    accelerator.save_state = save_all
    accelerator.register_load_state_pre_hook(
        lambda models, root: _saved.load_with_state_dict(_ours(accelerator), root)
    )


def hook_gradients(
    accelerator: Accelerator | type[Accelerator], **options: Any
) -> list[Hook]:
    """Registers ddp_hook() on each model that `prepare()` wraps in DDP from now on, for
    torch optimizers. Local; `prepare()` is collective. Returns a list to which
    `prepare()` appends each hook.

    accelerator: an Accelerator before `prepare()`, for example inside a Trainer. The
      class itself stands for every Accelerator that the process makes, for programs
      that do not expose one.
    options: options of ddp_hook(). Without `bits` and `low_rank`, the variable
      THINWIRE_BITS (4 or 8), if set, chooses the bits.

    The hook reads the loss scale of the accelerator's scaler. `save_state()` and
    `load_state()` include the residuals. Without DDP, for one rank, nothing changes.

    Raises InvalidArgument for another value of THINWIRE_BITS, and for options that
    ddp_hook() lacks or refuses. Nothing has changed then. `prepare()` raises the errors
    of ddp_hook().
    """
    given, hooks = from_environment(options), list[Hook]()
    _require_options(given)
    hooked: list[DistributedDataParallel] = []
    prepare_model = accelerator.prepare_model

    @wraps(prepare_model)
    def prepare_hooked(*args: Any, **more: Any) -> Any:
        model = prepare_model(*args, **more)
        ddp = getattr(model, "_orig_mod", model)  # torch.compile wraps it
        if isinstance(ddp, DistributedDataParallel) and ddp not in hooked:
            hooked.append(ddp)
            hooks.append(ddp_hook(ddp, **given))
            owner = args[0] if isinstance(accelerator, type) else accelerator
            owner.register_for_checkpointing(hooks[-1])
            if owner.scaler is not None:
                hooks[-1].watch(owner.scaler)
        return model

    accelerator.prepare_model = prepare_hooked
    return hooks


def _require_options(given: dict[str, Any]) -> None:
    known = [*inspect.signature(ddp_hook).parameters][1:]
    for name in given:
        if name not in known:
            raise InvalidArgument(
                f"options must be those of ddp_hook(), {', '.join(known)}, got {name}"
            )
    # `plain` names parameters of a model that does not exist yet.
    own = {f.name: given[f.name] for f in fields(Options) if f.name in given}
    Options(**{**own, "plain": ()}).checked(())


def leave_gradients_local(accelerator: Accelerator) -> None:
    """Makes DDP leave gradients local. `kwargs_handlers=` would accept no
    subclasses.
    """
    old = accelerator.ddp_handler
    accelerator.ddp_handler = LocalGradients(**(old.to_kwargs() if old else {}))
    if accelerator.scaler is not None:
        accelerator.scaler = _agreeing(accelerator.scaler)
    measure = accelerator.clip_grad_norm_

    def clip_grad_norm_(
        parameters: Any, max_norm: float, *args: Any, **more: Any
    ) -> Any:
        if math.isinf(max_norm):  # transformers' Trainer logs the norm
            return measure(parameters, max_norm, *args, **more)
        return _refuse_to_clip("clip_grad_norm_")

    accelerator.clip_grad_norm_ = clip_grad_norm_
    accelerator.clip_grad_value_ = lambda *_, **__: _refuse_to_clip("clip_grad_value_")


def _refuse_to_clip(name: str) -> NoReturn:
    raise FailedPrecondition(
        f"accelerator.{name}: it would clip each rank's gradient before ranks average: "
        "remove the call and give the optimizer max_grad_norm"
    )


def _agreeing(scaler: Any) -> GradScaler:
    return GradScaler(
        scaler._device,
        init_scale=scaler.get_scale(),
        growth_factor=scaler.get_growth_factor(),
        backoff_factor=scaler.get_backoff_factor(),
        growth_interval=scaler.get_growth_interval(),
        enabled=scaler.is_enabled(),
    )


def _ours(accelerator: Accelerator) -> list[Any]:
    return _saved.optimizers_of(accelerator._optimizers)

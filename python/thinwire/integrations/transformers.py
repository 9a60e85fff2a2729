# SPDX-License-Identifier: Apache-2.0
"""Integration with the Trainer of Hugging Face transformers. Written for version 5.23,
and run with 5.24.

    optimizer = thinwire.OnebitAdam(model.parameters(), lr=4e-4, freeze_step=2000)
    trainer = Trainer(model=model, args=args, train_dataset=data,
                      optimizers=(optimizer, None))
    thinwire.integrations.transformers.attach(trainer)
    trainer.train()

`optimizer_cls_and_kwargs=(thinwire.OnebitAdam, {"lr": 4e-4, "freeze_step": 2000})`
works as well. The Trainer then excludes norms and biases from weight decay.
"""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback

from ..errors import FailedPrecondition, InvalidArgument
from ..hooks import Hook, ddp_hook
from ..optim._base import _Optimizer
from . import _saved
from .accelerate import leave_gradients_local

__all__ = ["DdpHook", "attach"]

_CALL = "thinwire.integrations.transformers.attach(trainer)"


def attach(trainer: Trainer) -> None:
    """Prepares a Trainer for its Thinwire optimizer. Collective, before `train()`.

    DDP does not average gradients, because the optimizer does. The optimizer clips by
    `args.max_grad_norm`, unless it has its own `max_grad_norm`. `args.max_grad_norm` is
    then set to 0, because the Trainer would clip each rank's gradient by its own norm.
    thinwire.GradScaler scales fp16 losses. Each checkpoint of the Trainer contains a
    folder `thinwire` with every rank's state of the optimizer.
    `train(resume_from_checkpoint=...)` loads this state on any number of ranks.
    `evaluate()`, `predict()`, `save_model()` and the end of training first make
    parameters equal on all ranks, like synchronize() of the optimizer.

    Raises FailedPrecondition if the Trainer has begun to train, or runs DeepSpeed or
    FSDP. Raises InvalidArgument if its optimizer is not from Thinwire. In both cases
    nothing is changed.
    """
    _check(trainer)
    leave_gradients_local(trainer.accelerator)
    _move_clipping(trainer)
    _save_every_rank(trainer)
    _read_synchronized(trainer)


def _check(trainer: Trainer) -> None:
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise FailedPrecondition(
            "trainer: it runs DeepSpeed or FSDP; Thinwire's optimizers communicate "
            "themselves: leave `deepspeed` and `fsdp` out of TrainingArguments"
        )
    if trainer.model_wrapped is not trainer.model:
        raise FailedPrecondition(
            f"trainer: its model is wrapped already; call {_CALL} before trainer.train()"
        )
    if trainer.optimizer is not None:
        kind = type(trainer.optimizer)
    elif trainer.optimizer_cls_and_kwargs is not None:
        kind = trainer.optimizer_cls_and_kwargs[0]
    else:
        kind = None
    if kind is None or not issubclass(kind, _Optimizer):
        name = "its own default" if kind is None else kind.__name__
        raise InvalidArgument(
            "trainer: its optimizer must be one of Thinwire's, got "
            f"{name}; give Trainer(optimizers=(thinwire.OnebitAdam(...), None)) or "
            "Trainer(optimizer_cls_and_kwargs=(thinwire.OnebitAdam, {...}))"
        )


def _move_clipping(trainer: Trainer) -> None:
    norm = float(trainer.args.max_grad_norm or 0)
    trainer.args.max_grad_norm = 0.0
    if trainer.optimizer is not None:
        if norm > 0 and trainer.optimizer.max_grad_norm == 0:
            trainer.optimizer.set_max_grad_norm(norm)
    else:
        kind, options = trainer.optimizer_cls_and_kwargs
        trainer.optimizer_cls_and_kwargs = (kind, {"max_grad_norm": norm, **options})


def _save_every_rank(trainer: Trainer) -> None:
    """Saves through the two methods that the Trainer calls on every rank with the
    checkpoint's path. Callbacks cannot know this path in a hyperparameter search or
    when training resumes.
    """
    save = trainer._save_optimizer_and_scheduler
    load = trainer._load_optimizer_and_scheduler

    def save_all(output_dir: str) -> None:
        with _saved.states_beside(_ours(trainer)):
            save(output_dir)
        _saved.save(_ours(trainer), output_dir)

    def load_all(checkpoint: str | None) -> None:
        if checkpoint is not None:
            _saved.load_with_state_dict(_ours(trainer), checkpoint)
        load(checkpoint)

    trainer._save_optimizer_and_scheduler = save_all
    trainer._load_optimizer_and_scheduler = load_all


def _read_synchronized(trainer: Trainer) -> None:
    """Makes parameters equal on all ranks before the Trainer reads them."""
    for name in ("evaluate", "predict", "save_model"):
        method = getattr(trainer, name)
        setattr(trainer, name, _saved.synchronizing(method, lambda: _ours(trainer)))
    # This callback is first, because others save the model at the end of training.
    trainer.callback_handler.callbacks.insert(0, _EqualAtEnd(trainer))


class _EqualAtEnd(TrainerCallback):  # type: ignore[misc]
    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def on_train_end(self, *_: Any, **__: Any) -> None:
        _saved.synchronize(_ours(self._trainer))


def _ours(trainer: Trainer) -> list[_Optimizer]:
    return _saved.optimizers_of([trainer.optimizer])


class DdpHook(TrainerCallback):  # type: ignore[misc]
    """Registers ddp_hook() when training begins, for a torch optimizer.

        trainer.add_callback(thinwire.integrations.transformers.DdpHook(trainer))

    Checkpoints of the Trainer do not contain the residuals. A resumed run therefore
    begins with residuals of 0 and repeats its `exact_steps`. Without DDP (one rank),
    the callback does nothing.
    """

    hook: Hook | None = None
    """The hook, after training has begun. A second `train()` keeps it."""

    def __init__(self, trainer: Trainer, **options: Any) -> None:
        """`options` are the options of ddp_hook()."""
        self._trainer, self._options = trainer, options
        self._ddp: DistributedDataParallel | None = None  # the one with the hook

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        wrapped = self._trainer.model_wrapped
        if isinstance(wrapped, DistributedDataParallel) and wrapped is not self._ddp:
            self.hook = ddp_hook(wrapped, **self._options)
            self._ddp = wrapped
            if self._trainer.accelerator.scaler is not None:
                self.hook.watch(self._trainer.accelerator.scaler)

# SPDX-License-Identifier: Apache-2.0
"""Lightning. Written for version 2.6.

    trainer = Trainer(accelerator="cpu", devices=4,
                      strategy=thinwire.integrations.lightning.strategy(),
                      callbacks=[thinwire.integrations.lightning.Checkpoint("out")])

`configure_optimizers` of the module returns a Thinwire optimizer.
"""

from __future__ import annotations

import shutil
from typing import Any, NoReturn

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import GradClipAlgorithmType
from torch.nn.parallel import DistributedDataParallel

from .. import comm
from ..errors import FailedPrecondition, InvalidArgument
from ..hooks import Hook, ddp_hook
from . import _saved

__all__ = ["Checkpoint", "HookStrategy", "Strategy", "strategy"]


class Strategy(DDPStrategy):  # type: ignore[misc]
    """DDP that leaves gradients local. DDPStrategy registers its own `ddp_comm_hook`
    only on CUDA devices.

    Validations, tests, predictions, checkpoints and the end of training first make
    parameters equal on all ranks, like synchronize() of the optimizers.
    """

    strategy_name = "thinwire"
    _norm = 0.0  # the trainer's gradient_clip_val, for each of its fit() calls

    def configure_ddp(self) -> None:
        super().configure_ddp()
        assert isinstance(self.model, DistributedDataParallel)
        comm.local_gradients(self.model)

    def setup(self, trainer: Trainer) -> None:
        """Also moves `Trainer(gradient_clip_val=...)` into optimizers that have no
        `max_grad_norm`, because Lightning would clip each rank's gradient by its own
        norm.

        Raises InvalidArgument for gradient_clip_algorithm="value", and if an optimizer
        is not from Thinwire. Lightning's clip_gradients() raises FailedPrecondition.
        """
        if trainer.state.fn == TrainerFn.FITTING:
            _refuse_values(trainer)
        super().setup(trainer)
        cure = "use HookStrategy for optimizers of torch's"
        ours = _saved.require_ours("configure_optimizers", self.optimizers, cure)
        for name in ("clip_grad_by_norm", "clip_grad_by_value"):
            setattr(self.precision_plugin, name, _refuse_to_clip)
        if trainer.gradient_clip_val is not None:
            self._norm = float(trainer.gradient_clip_val)
            trainer.gradient_clip_val = None
        for optimizer in ours:
            if optimizer.max_grad_norm == 0 and self._norm > 0:
                optimizer.set_max_grad_norm(self._norm)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Returns the module's state for a checkpoint. Collective."""
        self._synchronize()
        state: dict[str, Any] = super().lightning_module_state_dict()
        return state

    def _synchronize(self) -> None:
        _saved.synchronize(_saved.optimizers_of(self.optimizers))

    on_validation_start = on_test_start = on_predict_start = _synchronize
    on_train_end = _synchronize


def _refuse_values(trainer: Trainer) -> None:
    by_value = trainer.gradient_clip_algorithm == GradClipAlgorithmType.VALUE
    if by_value and trainer.gradient_clip_val:
        raise InvalidArgument(
            'gradient_clip_algorithm: must be "norm", which the optimizer applies to the '
            'average, got "value", which would clip each rank\'s gradient before ranks '
            "average"
        )


def _refuse_to_clip(*_: Any) -> NoReturn:
    raise FailedPrecondition(
        "clip_gradients: it would clip each rank's gradient before ranks average: remove "
        "the call and give the optimizer max_grad_norm"
    )


def strategy(**options: Any) -> Strategy:
    """Returns a value for `Trainer(strategy=...)` that trains with Thinwire's
    optimizers in DDP.

    `options` are arguments of DDPStrategy and DistributedDataParallel. Lightning
    chooses the process group for the device (gloo for CPUs). With precision="16-mixed"
    pass `plugins=MixedPrecision("16-mixed", "cuda", thinwire.GradScaler("cuda"))`,
    because the optimizer rejects torch's own scaler.
    """
    return Strategy(**options)


class HookStrategy(DDPStrategy):  # type: ignore[misc]
    """DDP with ddp_hook(), for torch optimizers: `HookStrategy({"bits": 8})`. Lightning
    registers a `ddp_comm_hook` itself on CUDA devices only.

    Checkpoints of Lightning do not contain the residuals. A resumed run therefore
    begins with residuals of 0 and repeats its `exact_steps`.
    """

    strategy_name = "thinwire_hook"
    hook: Hook
    """The hook, which is made when fit() begins. Call its watch() for a GradScaler."""

    def __init__(self, hook: dict[str, Any] | None = None, **options: Any) -> None:
        """`hook` contains options of ddp_hook(), and `options` are arguments of
        DDPStrategy.
        """
        super().__init__(**options)
        self._hook_options = hook or {}

    def configure_ddp(self) -> None:
        super().configure_ddp()
        assert isinstance(self.model, DistributedDataParallel)
        self.hook = ddp_hook(self.model, **self._hook_options)


class Checkpoint(ModelCheckpoint):  # type: ignore[misc]
    """Lightning's ModelCheckpoint, which also saves every rank's state of Thinwire's
    optimizers.

    The constructor accepts all arguments of ModelCheckpoint. States are in the folder
    FILE.ckpt.thinwire beside FILE.ckpt, and not in Lightning's own file.
    `fit(ckpt_path=FILE.ckpt)` loads them on any number of ranks.
    """

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        with _saved.states_beside(_ours(trainer)):
            super()._save_checkpoint(trainer, filepath)
        if not self.save_weights_only:
            _saved.save(_ours(trainer), _beside(filepath))

    def _remove_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        super()._remove_checkpoint(trainer, filepath)
        if trainer.is_global_zero:
            shutil.rmtree(_beside(filepath), ignore_errors=True)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Makes the optimizers, which exist at this time, load Thinwire's states later."""
        super().on_fit_start(trainer, pl_module)
        if trainer.ckpt_path is not None:
            _saved.load_with_state_dict(_ours(trainer), _beside(trainer.ckpt_path))


def _beside(filepath: Any) -> str:
    return f"{filepath}.thinwire"


def _ours(trainer: Trainer) -> list[Any]:
    return _saved.optimizers_of(trainer.optimizers)

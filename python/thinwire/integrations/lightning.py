# SPDX-License-Identifier: Apache-2.0
"""Lightning. Written for version 2.6.

    trainer = Trainer(accelerator="cpu", devices=4,
                      strategy=thinwire.integrations.lightning.strategy(),
                      callbacks=[thinwire.integrations.lightning.Checkpoint("out")])

`configure_optimizers` of the module returns an optimizer of Thinwire's.
"""

from __future__ import annotations

import shutil
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

from .. import comm
from . import _saved

__all__ = ["Checkpoint", "Strategy", "strategy"]


class Strategy(DDPStrategy):  # type: ignore[misc]
    """DDP that leaves gradients local. DDPStrategy's own `ddp_comm_hook` does so on
    CUDA devices only: elsewhere it is not registered."""

    strategy_name = "thinwire"

    def configure_ddp(self) -> None:
        super().configure_ddp()
        assert isinstance(self.model, DistributedDataParallel)
        comm.local_gradients(self.model)

    def setup(self, trainer: Trainer) -> None:
        """Also moves `Trainer(gradient_clip_val=...)` into optimizers that have no
        `max_grad_norm`: Lightning would clip each rank's gradient by its own norm."""
        super().setup(trainer)
        norm = float(trainer.gradient_clip_val or 0)
        ours = _saved.optimizers_of(self.optimizers)
        if norm == 0 or len(ours) < len(self.optimizers) or not ours:
            return
        for optimizer in ours:
            if optimizer.max_grad_norm == 0:
                optimizer.set_max_grad_norm(norm)
        trainer.gradient_clip_val = None


def strategy(**options: Any) -> Strategy:
    """For `Trainer(strategy=...)`: trains with Thinwire's optimizers under DDP.

    `options` are DDPStrategy's and DistributedDataParallel's. The process group is the
    one that Lightning chooses for the device (gloo for CPUs). With precision="16-mixed"
    give `plugins=MixedPrecision("16-mixed", "cuda", thinwire.GradScaler("cuda"))`:
    torch's own scaler is refused by the optimizer.
    """
    return Strategy(**options)


class Checkpoint(ModelCheckpoint):  # type: ignore[misc]
    """Lightning's ModelCheckpoint, with all of its arguments, that also saves every
    rank's state of Thinwire's optimizers: beside FILE.ckpt, in the folder
    FILE.ckpt.thinwire. `fit(ckpt_path=FILE.ckpt)` loads it, on any number of ranks.

    Lightning's own file has no states of these optimizers, which then are there once.
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
        """Optimizers are made, and their states not yet loaded."""
        super().on_fit_start(trainer, pl_module)
        if trainer.ckpt_path is not None:
            _saved.load_with_state_dict(_ours(trainer), _beside(trainer.ckpt_path))


def _beside(filepath: Any) -> str:
    return f"{filepath}.thinwire"


def _ours(trainer: Trainer) -> list[Any]:
    return _saved.optimizers_of(trainer.optimizers)

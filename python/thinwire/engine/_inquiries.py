# SPDX-License-Identifier: Apache-2.0
"""Values that an Engine returns, by DeepSpeed's names. All of it is local."""

from __future__ import annotations

from typing import Any

from .. import _core
from ..optim._run import RunTotals
from ._base import EngineBase


class Inquiries(EngineBase):
    """Getters of Engine."""

    def gradient_accumulation_steps(self) -> int:
        """Returns the number of backwards per step."""
        return self._batch[2]

    def train_batch_size(self) -> int:
        """Returns the samples per step of all ranks; 0 if the configuration has no
        number.
        """
        return self._batch[0]

    def train_micro_batch_size_per_gpu(self) -> int:
        """Returns the samples per backward of one rank; 0 if the configuration has no
        number.
        """
        return self._batch[1]

    def get_batch_info(self) -> tuple[int, int, int]:
        """Returns train_batch_size, train_micro_batch_size_per_gpu and
        gradient_accumulation_steps.
        """
        return self._batch

    def get_lr(self) -> list[float]:
        """Returns the learning rates of the next step, one per group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        """Returns the betas, one pair per group. For an optimizer without betas,
        returns its momentum, or 0.
        """
        return [
            tuple(group["betas"]) if "betas" in group else group.get("momentum", 0.0)
            for group in self.optimizer.param_groups
        ]

    @property
    def totals(self) -> RunTotals:
        """Traffic of this rank in this run, and what compression has saved."""
        return self._progress.run.totals

    def get_global_grad_norm(self) -> float | None:
        """Returns the L2 norm of the last step's averaged gradient before clipping.
        Returns None before the first step. In compressed steps it is an estimate; see
        `report`.
        """
        return None if self.report is None else self.report.grad_norm

    def loss_scale(self) -> float:
        """Returns the factor on the next loss; 1 unless parameters are fp16."""
        return self._native.loss_scale

    @property
    def cur_scale(self) -> float:
        """Returns loss_scale()."""
        return self._native.loss_scale

    def was_step_applied(self) -> bool:
        """Returns whether the last step() updated parameters: it was at a boundary, and
        not skipped.
        """
        return self.report is not None and self.report.applied

    def is_gradient_accumulation_boundary(self) -> bool:
        """Returns whether the next step() takes effect after this backward, or did
        after the last.
        """
        return self._native.is_boundary

    def zero_optimization(self) -> bool:
        """Returns whether states are sharded."""
        return self._config.zero.stage > 0

    def zero_optimization_stage(self) -> int:
        """Returns the stage: 0, 1 or 2."""
        return self._config.zero.stage

    def zero_cpu_offload(self) -> bool:
        """Returns whether masters and states are updated in host memory."""
        asked = self._config.zero.offload_optimizer != _core.OffloadDevice.none
        return asked or self.device.type != "cpu"

    def fp16_enabled(self) -> bool:
        """Returns whether parameters are float16."""
        return self._config.precision.dtype == _core.DType.float16

    def bfloat16_enabled(self) -> bool:
        """Returns whether parameters are bfloat16."""
        return self._config.precision.dtype == _core.DType.bfloat16

    def gradient_clipping(self) -> float:
        """Returns the global norm to which gradients are clipped; 0 for no clipping."""
        return self._config.gradient_clipping

    def dynamic_loss_scale(self) -> bool:
        """Returns whether the loss scale changes from step to step."""
        return self.fp16_enabled() and self._config.precision.loss_scale.dynamic

    def steps_per_print(self) -> int:
        """Returns the steps per line of the log; 0 for no lines."""
        return self._config.steps_per_print

    def optimizer_name(self) -> str:
        """Returns a name such as "adam" or "onebit_adam". For a client optimizer this
        is the name of its class.
        """
        if self._client is not None:
            return type(self._client.optimizer).__name__
        return self._config.optimizer_name()

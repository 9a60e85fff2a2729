# SPDX-License-Identifier: Apache-2.0
"""What an Engine can be asked, by DeepSpeed's names. All of it is local."""

from __future__ import annotations

from typing import Any

from .. import _core
from ..optim._run import RunTotals
from ._base import EngineBase


class Inquiries(EngineBase):
    """Getters of Engine."""

    def gradient_accumulation_steps(self) -> int:
        """Backwards per step."""
        return self._batch[2]

    def train_batch_size(self) -> int:
        """Samples per step of all ranks; 0 where the configuration does not say."""
        return self._batch[0]

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples per backward of one rank; 0 where the configuration does not say."""
        return self._batch[1]

    def get_batch_info(self) -> tuple[int, int, int]:
        """train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps."""
        return self._batch

    def get_lr(self) -> list[float]:
        """Learning rates of the next step, one per group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        """Betas, one pair per group; of an optimizer without them its momentum, or 0."""
        return [
            tuple(group["betas"]) if "betas" in group else group.get("momentum", 0.0)
            for group in self.optimizer.param_groups
        ]

    @property
    def totals(self) -> RunTotals:
        """What this rank has sent in this run, and what compression has saved."""
        return self._progress.run.totals

    def get_global_grad_norm(self) -> float | None:
        """L2 norm of the last step's averaged gradient before clipping; None before the
        first step. In compressed steps an estimate, as `report` says."""
        return None if self.report is None else self.report.grad_norm

    def loss_scale(self) -> float:
        """What the next loss is multiplied by; 1 unless parameters are fp16."""
        return self._native.loss_scale

    @property
    def cur_scale(self) -> float:
        """loss_scale()."""
        return self._native.loss_scale

    def was_step_applied(self) -> bool:
        """The last step() updated parameters: it was at a boundary, and not skipped."""
        return self.report is not None and self.report.applied

    def is_gradient_accumulation_boundary(self) -> bool:
        """The next step() takes effect after this backward, or did after the last."""
        return self._native.is_boundary

    def zero_optimization(self) -> bool:
        """States are sharded."""
        return self._config.zero.stage > 0

    def zero_optimization_stage(self) -> int:
        """0, 1 or 2."""
        return self._config.zero.stage

    def zero_cpu_offload(self) -> bool:
        """Masters and states are updated in host memory."""
        asked = self._config.zero.offload_optimizer != _core.OffloadDevice.none
        return asked or self.device.type != "cpu"

    def fp16_enabled(self) -> bool:
        """Parameters are float16."""
        return self._config.precision.dtype == _core.DType.float16

    def bfloat16_enabled(self) -> bool:
        """Parameters are bfloat16."""
        return self._config.precision.dtype == _core.DType.bfloat16

    def gradient_clipping(self) -> float:
        """Global norm that gradients are clipped to; 0: never."""
        return self._config.gradient_clipping

    def dynamic_loss_scale(self) -> bool:
        """The loss scale changes from step to step."""
        return self.fp16_enabled() and self._config.precision.loss_scale.dynamic

    def steps_per_print(self) -> int:
        """Steps per line of the log; 0: none."""
        return self._config.steps_per_print

    def optimizer_name(self) -> str:
        """As "adam" or "onebit_adam"; of a client optimizer the name of its class."""
        if self._client is not None:
            return type(self._client.optimizer).__name__
        return self._config.optimizer_name()

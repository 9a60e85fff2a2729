# SPDX-License-Identifier: Apache-2.0
"""Settings that Accelerate, and so the Trainer of transformers, applies to a model in
DDP.
"""

from __future__ import annotations

from dataclasses import dataclass

from accelerate.utils import DistributedDataParallelKwargs
from torch.nn.parallel import DistributedDataParallel

from .. import comm


@dataclass
class LocalGradients(DistributedDataParallelKwargs):  # type: ignore[misc]
    """Settings of DistributedDataParallel with which it leaves gradients local."""

    def register_comm_hook(self, model: DistributedDataParallel) -> None:
        comm.local_gradients(model)

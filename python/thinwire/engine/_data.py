# SPDX-License-Identifier: Apache-2.0
"""Training data, of which every rank has a part of its own."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from ..errors import InvalidArgument


def require_shareable(dataset: Any, batch_size: int) -> None:
    """Checks the arguments. Local. Raises InvalidArgument for a dataset or size that
    cannot be divided.
    """
    if isinstance(dataset, IterableDataset):
        raise InvalidArgument(
            "training_data: an IterableDataset cannot be shared out by index; make a "
            "DataLoader that gives each rank its own part"
        )
    if batch_size < 1:
        raise InvalidArgument(
            "training_data: the configuration does not say how large a micro-batch is; "
            "set train_micro_batch_size_per_gpu or train_batch_size"
        )

# SPDX-License-Identifier: Apache-2.0
"""Loaders of training data: every rank has a part of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
)

from ..errors import InvalidArgument


def make_loader(
    dataset: Dataset[Any],
    *,
    batch_size: int,
    rank: int,
    world_size: int,
    shuffle: bool,
    sampler: Sampler[Any] | None = None,
    collate_fn: Callable[..., Any] | None = None,
    pin_memory: bool = False,
    num_workers: int = 0,
) -> DataLoader[Any]:
    """Returns micro-batches of this rank's share. Local. All ranks have as many.

    They are drawn with seed 0 unless `sampler` chooses them.
    `loader.sampler.set_epoch(e)` draws them anew.

    Raises InvalidArgument for a dataset or size that cannot be divided.
    """
    require_shareable(dataset, batch_size)
    if sampler is None:
        sampler = DistributedSampler(
            dataset,
            num_replicas=world_size,
            rank=rank,
            shuffle=shuffle,
            seed=0,
            drop_last=True,
        )
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        collate_fn=collate_fn,
        pin_memory=pin_memory,
        num_workers=num_workers,
    )


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

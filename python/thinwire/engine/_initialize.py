# SPDX-License-Identifier: Apache-2.0
"""initialize(): DeepSpeed's call, and the arguments that its scripts parse."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from ..config import Source
from ..errors import InvalidArgument, Unavailable
from ._engine import Engine


def initialize(
    args: Any = None,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Callable[..., Any] | None = None,
    model_parameters: Any = None,
    training_data: Dataset[Any] | None = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable[..., Any] | None = None,
    config: Source | None = None,
    mesh_param: Any = None,
    config_params: Source | None = None,
    *,
    process_group: Any = None,
) -> tuple[Engine, torch.optim.Optimizer, DataLoader[Any] | None, Any]:
    """Collective: makes an Engine of a model, by a configuration; DeepSpeed's arguments
    in DeepSpeed's order. Returns the engine, its optimizer, the loader of
    `training_data` and the scheduler; what there is not is None.

    args: may have deepspeed_config, a path, and local_rank.
    optimizer: one of Thinwire's, torch.optim.Adam or AdamW, or a callable that makes one
      of the parameters. It is taken over: the engine makes the steps.
    model_parameters: parameters or groups of the model; others are not trained.
    training_data: shared out among the ranks in micro-batches.
    lr_scheduler: of torch, or a callable that makes one of the engine's optimizer;
      stepped by engine.step() where a step was applied. It takes the place of the
      configuration's.
    dist_init_required: None: torch.distributed is initialized if a launcher has started
      several ranks and nobody has done it yet; False: never.
    config: a path, a dict or a thinwire.Config; config_params is its old name.
    process_group: as that of thinwire's optimizers; not DeepSpeed's.

    Raises InvalidArgument and TypeError naming the argument or key, Unavailable for what
    Thinwire does not have, FailedPrecondition where there is nothing to train. Whatever
    one rank refuses, all ranks do, and nothing has changed.
    """

    def source() -> Source:
        for name, value in (("mpu", mpu), ("mesh_param", mesh_param)):
            if value is not None:
                raise Unavailable(
                    f"{name}: must be None, Thinwire has data parallelism only"
                )
        return _source(args, config, config_params)

    if process_group is None and dist_init_required is not False:
        _init_distributed(distributed_port)
    engine = Engine(
        model,
        source,
        optimizer=optimizer,
        model_parameters=model_parameters,
        training_data=training_data,
        lr_scheduler=lr_scheduler,
        collate_fn=collate_fn,
        process_group=process_group,
        local_rank=getattr(args, "local_rank", None),
    )
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds DeepSpeed's arguments: --deepspeed, and --deepspeed_config FILE."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument(
        "--deepspeed",
        default=False,
        action="store_true",
        help="for scripts that look at it; without effect here",
    )
    group.add_argument(
        "--deepspeed_config", default=None, type=str, help="file of the configuration"
    )
    return parser


def _source(args: Any, config: Source | None, config_params: Source | None) -> Source:
    given = {
        "config": config,
        "config_params": config_params,
        "args.deepspeed_config": getattr(args, "deepspeed_config", None),
    }
    found = {name: value for name, value in given.items() if value is not None}
    if not found:
        raise InvalidArgument(
            "config: must be a path, a dict or a thinwire.Config; args has no "
            "deepspeed_config either"
        )
    if len(found) > 1:
        raise InvalidArgument(f"config: must be given once, got {' and '.join(found)}")
    source: Source = next(iter(found.values()))
    return source


def _init_distributed(port: int) -> None:
    from ..comm import init_distributed
    from ..comm.groups import launched_ranks

    elsewhere = os.environ.get("THINWIRE_COMM", "torch") != "torch"
    if launched_ranks() > 1 and not elsewhere:
        init_distributed(distributed_port=port, verbose=False)

# SPDX-License-Identifier: Apache-2.0
"""initialize(): DeepSpeed's call, and the arguments that its scripts parse."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from ..comm.calls import in_call
from ..config import Source, named_backend
from ..errors import InvalidArgument, Unavailable
from ..optim import _attributes
from ._engine import Engine


@in_call("initialize()")
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
    """Makes an Engine for a model and a configuration. Collective.

    The arguments are in DeepSpeed's order. Returns the engine, its optimizer, the
    loader of `training_data` and the scheduler. The loader or the scheduler is None if
    it does not exist.

    args: an object that may have the attributes deepspeed_config, a path, and
      local_rank.
    optimizer: a Thinwire or torch optimizer, or a callable that makes one from the
      parameters. The engine takes over the settings of Thinwire optimizers,
      torch.optim.Adam and AdamW. A Thinwire optimizer is closed, even if a later check
      raises. Other torch optimizers make their own steps with exact averages, without
      ZeRO.
    model_parameters: parameters or groups of the model. Other parameters are not
      trained. If a group of parameters names a process group as expert_group, only
      ranks of the process group hold and average these parameters. Parameters with the
      attribute allreduce=False, and groups with a true `moe`, are also experts. Experts
      use mpu.get_expert_data_parallel_group() or, if DeepSpeed is loaded, its process
      group; without either, experts are refused.
    training_data: dataset that is divided among the ranks in micro-batches.
    lr_scheduler: a torch scheduler, or a callable that makes one from the engine's
      optimizer. The scheduler replaces the configuration's schedule, and every applied
      engine.step() advances the scheduler.
    mpu: object for model parallelism. Ranks of mpu.get_data_parallel_group() hold the
      same parameters and average gradients. If neither mpu nor process_group is given,
      parameters with a true attribute model_parallel or tensor_model_parallel are
      refused. Ranks of mpu.get_model_parallel_group(), if that method exists, together
      hold one model, clip by one norm and skip the same steps. A parameter that several
      of these ranks hold alike counts once in the norm, unless it has one of these
      attributes.
    dist_init_required: whether to initialize torch.distributed. None initializes it
      under torchrun, or if a launcher has started several ranks, unless it is already
      initialized. False never initializes it.
    config: a path, a dict or a thinwire.Config; config_params is the old name of this
      argument.
    process_group: the same as for Thinwire's optimizers; DeepSpeed has no such
      argument.

    Raises InvalidArgument and TypeError naming the argument or key, Unavailable for
    features that Thinwire lacks, and FailedPrecondition if there is nothing to train.
    If one rank raises, all ranks raise. The model is then unchanged, but
    torch.distributed may have been initialized.
    """

    def source() -> Source:
        if mesh_param is not None:
            raise Unavailable(
                "mesh_param: must be None; give the ranks that hold the same parameters "
                "as process_group, or mpu"
            )
        _attributes.require_mpu(mpu, "mpu")
        if mpu is not None and given_group is not None:
            raise InvalidArgument("process_group: must be None with mpu, which has it")
        return _source(args, config, config_params)

    given_group = process_group
    if process_group is None:
        process_group = _attributes.data_parallel_group(mpu)
    if process_group is None and dist_init_required is not False:
        _init_distributed(distributed_port, named_backend(source))
    engine = Engine(
        model,
        source,
        optimizer=optimizer,
        model_parameters=model_parameters,
        training_data=training_data,
        lr_scheduler=lr_scheduler,
        collate_fn=collate_fn,
        process_group=process_group,
        mpu=mpu,
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


def _init_distributed(port: int, backend: str | None) -> None:
    from ..comm import init_distributed
    from ..comm.groups import launched_ranks

    named = "mpi4py" if backend == "mpi" else "torch"
    elsewhere = os.environ.get("THINWIRE_COMM", named) != "torch"
    if ("RANK" in os.environ or launched_ranks() > 1) and not elsewhere:
        init_distributed(distributed_port=port, verbose=False)

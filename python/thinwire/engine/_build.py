# SPDX-License-Identifier: Apache-2.0
"""Construction of an Engine: all checks come first, and all ranks fail alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterableDataset

from .. import _core
from .._agreement import gathered
from .._log import logger
from .._monitors import SECTIONS, Monitor, monitors_of
from ..comm.host_group import HostGroup, host_group_for
from ..config import Source, log_notes, read_config, tree_of
from ..errors import InvalidArgument
from ..optim import _attributes
from ..optim._experts import KEY as EXPERTS
from ..optim._experts import Experts, in_order
from ..optim._parameters import Place, marked, warn_of_order
from ._client import INSTEAD, Client, take_over
from ._groups import Groups, groups_of, left_out, tell_groups, trainable, warn_of
from ._hooks import Link
from ._memory import TYPES, EngineMemory
from ._others import ModuleBuffers
from ._staging import StagedEngineMemory, StagedLink
from .leaders import Core
from .leaders.core import LedCore
from .leaders.link import LedLink
from .leaders.memory import FollowerMemory, LeaderMemory


@dataclass(frozen=True)
class Plan:
    """Settings of the engine in the form that C++ takes."""

    config: _core.Config
    groups: Groups
    split: list[int]
    """For each split-off group, all of which are last, the number of the group it came
    from.
    """
    places: list[Place]
    left_out: list[str]
    monitors: list[Monitor]
    """Monitors, which are empty except on rank 0."""
    client: Client | None
    """Torch optimizer that makes the steps, or None if C++ makes them."""


def make_plan(
    comm: _core.Communicator,
    model: Any,
    source: Source | Callable[[], Source],
    optimizer: Any,
    model_parameters: Any,
    training_data: Any,
    has_scheduler: bool,
    mpu: Any,
    has_group: bool,
) -> Plan:
    """Returns the plan. Local, unless `optimizer` is a callable that makes a Thinwire
    optimizer.

    Raises InvalidArgument, TypeError, FailedPrecondition or Unavailable, like
    Config.validate. After an error, the model is unchanged.
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(
            f"model: must be a torch.nn.Module, got {type(model).__name__}"
        )
    _refuse_wrapped(model)
    source = source() if callable(source) else source
    if comm.size > 1 and not has_group:
        _attributes.require_group(model.named_parameters(), _NO_GROUP)
    config, notes = read_config(source, without_schedule=has_scheduler)
    if comm.rank == 0:
        log_notes(notes, SECTIONS)
    taken: torch.optim.Optimizer | None = None
    client = None
    if optimizer is None:
        groups = groups_of(model, model_parameters)
    else:
        given = model.parameters() if model_parameters is None else model_parameters
        taken, client = take_over(optimizer, given, config, comm.rank)
        groups = groups_of(model, taken.param_groups)
    split: list[int] = []
    if client is None:
        split = _attributes.find_experts(groups, mpu, comm.size)
    else:
        _refuse_experts(client, groups, comm.size)
    places = trainable(groups)
    if comm.size > 1:
        _refuse_untrained_experts(model, groups, places)
    # DeepSpeed's semantics convert all parameters, and a client optimizer needs a
    # master of each.
    if config.semantics == _core.Semantics.corrected and client is None:
        dtype = TYPES[config.precision.dtype]
        places = marked(places, None if dtype == torch.float32 else dtype)
    places = in_order(places, groups)
    if client is None:
        tell_groups(config, groups, places)
    config.validate(comm.size)
    names = left_out(model, places)
    if comm.rank == 0:
        warn_of(names)
    if training_data is not None:
        require_shareable(training_data, config.batch(comm.size)[1], comm.size)
    # Monitors come last, because they create directories.
    monitors = monitors_of(tree_of(source)) if comm.rank == 0 else []
    if taken is not None:  # from here on, the engine uses its groups
        for own, group in zip(taken.param_groups, groups, strict=False):
            own.update(group)
        groups[: len(taken.param_groups)] = taken.param_groups
    return Plan(config, groups, split, places, names, monitors, client)


def require_shareable(dataset: Any, batch_size: int, num_ranks: int) -> None:
    """Raises InvalidArgument for a dataset or size that cannot be divided. Local."""
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
    if len(dataset) < num_ranks:
        raise InvalidArgument(
            "training_data: each rank needs at least one sample, got a dataset of "
            f"{len(dataset)} for {num_ranks} ranks"
        )


def _refuse_wrapped(model: torch.nn.Module) -> None:
    # DistributedDataParallel would write its averages into the gradients that an engine
    # sends.
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            where = f"'{name}' in it" if name else "it"
            raise InvalidArgument(
                f"model: {where} is a DistributedDataParallel, which averages gradients "
                "as the engine does: give the module inside, model.module"
            )


def _refuse_experts(client: Client, groups: Groups, num_ranks: int) -> None:
    for group in groups:
        is_marked = num_ranks > 1 and _attributes.has_marked(group)
        if is_marked or group.get(EXPERTS) is not None:
            raise InvalidArgument(
                f"optimizer: {client.name} makes its own steps, so no parameter may be an "
                f"expert ({EXPERTS}, allreduce=False or 'moe'); give {INSTEAD}"
            )


def _refuse_untrained_experts(
    model: torch.nn.Module, groups: Groups, places: list[Place]
) -> None:
    trained = {id(place.tensor) for place in places}
    of_groups = {id(p) for g in groups if g.get(EXPERTS) for p in g["params"]}
    for name, parameter in model.named_parameters():
        is_one = _attributes.is_expert(parameter) or id(parameter) in of_groups
        if is_one and id(parameter) not in trained:
            raise InvalidArgument(
                f"model: parameter '{name}' is an expert and is not trained, and an engine "
                "makes those parameters equal on all ranks: train it, in a group with lr=0 "
                "if it must not change"
            )


_NO_GROUP = (
    "give mpu=, whose get_data_parallel_group() has the ranks that hold the same part, "
    "or process_group="
)


def leaders_for(comm: _core.Communicator, plan: Plan) -> HostGroup | None:
    """Returns the group of this host's ranks if their leader makes the steps.
    Collective.
    """
    config = plan.config
    if comm.size == 1:
        return None
    cannot = (
        config.comm.hierarchy != _core.Hierarchy.auto
        or config.comm.compressed_under_next_step
        or config.semantics != _core.Semantics.corrected
        or not config.managed_gradient_accumulation
        or plan.client is not None
        or any(group.get(EXPERTS) is not None for group in plan.groups)
    )
    # If ranks differ here, their engines raise an error.
    if "True" in gathered(comm, str(cannot)):
        return None
    device = plan.places[0].tensor.device
    named = config.comm.backend
    of_device = named in (_core.CommBackend.nccl, _core.CommBackend.hccl)
    hosts = host_group_for(
        comm,
        device,
        config.comm.ranks_per_host,
        preferred=named.name if of_device else "",
    )
    if hosts is not None and comm.rank == 0:
        logger.info(
            "%d hosts of %d ranks: %s sums gradients inside a host, and its first rank "
            "exchanges and steps",
            hosts.num_hosts,
            hosts.size,
            hosts.backend,
        )
    return hosts


def make_parts(
    comm: _core.Communicator,
    model: torch.nn.Module,
    plan: Plan,
    experts: Experts,
    hosts: HostGroup | None = None,
) -> tuple[Core, EngineMemory, ModuleBuffers]:
    """Makes the native engine, and turns the module's parameters into views of flat
    memory. Collective. All parameters, including frozen ones, receive the values of
    rank 0. Experts receive the values of the first rank that holds them. Buffers are
    made equal as configured.

    Raises InvalidArgument on all ranks if their models or configurations differ;
    nothing has changed then.
    """
    config, places = plan.config, plan.places
    dtype = TYPES[config.precision.dtype]
    layout = _core.Layout(
        [(p.name, tuple(p.tensor.shape), p.group) for p in places], len(plan.groups)
    )
    buffers = ModuleBuffers(model, comm)
    tensors = [place.tensor for place in places]
    num_wide = sum(place.is_wide for place in places)
    if hosts is None:
        keeps = _core.keeps_gradients(config, comm.size)
    else:
        of_leaders = _core.config_of_leaders(config, comm.size, hosts.size)
        keeps = _core.keeps_gradients(of_leaders, hosts.num_hosts)
    memory = _memory_for(hosts, tensors, layout, dtype, keeps, num_wide)
    is_fp32 = all(p.dtype == torch.float32 for p in model.parameters())
    initial = None
    if dtype != torch.float32:  # masters are made from values before rounding
        on_host = [t.detach().to("cpu", torch.float32) for t in tensors]
        initial = torch.cat([t.reshape(-1) for t in on_host])
    grads = memory.handed_grads if keeps else None
    if plan.client is not None:
        plan.client.begin(memory.parameters, layout.offsets)

    def make(comm: _core.Communicator, config: _core.Config) -> _core.Engine:
        return _core.Engine(
            comm,
            layout,
            config,
            memory.handed_params,
            grads,
            initial,
            experts.of_groups,
            plan.client,
        )

    if hosts is None:
        core: Core = make(comm, config)
    else:
        kinds = f"dtype: {dtype}, and float32 for {num_wide} parameters\n"
        core = LedCore(hosts, comm, config, layout, kinds, make)
    buffers.send_frozen(model, tensors)
    if comm.rank == 0:
        warn_of_order(places)
    memory.attach_parameters()
    memory.publish()
    if num_wide > 0 and comm.rank == 0:
        _tell_of_wide(places)
    # A model with several dtypes is not converted, because the program chose them on
    # purpose.
    if dtype != torch.float32 and is_fp32:
        names = _convert_frozen(model, tensors, dtype) + buffers.convert(dtype)
        if names and comm.rank == 0:
            _tell_of_converted(names, dtype)
    buffers.make_equal(config.buffers)
    return core, memory, buffers


def _memory_for(
    hosts: HostGroup | None,
    tensors: list[torch.Tensor],
    layout: _core.Layout,
    dtype: torch.dtype,
    keeps: bool,
    num_wide: int,
) -> EngineMemory:
    if hosts is not None and not hosts.is_leader:
        return FollowerMemory(hosts, tensors, layout, dtype, num_wide)
    if hosts is not None:
        return LeaderMemory(hosts, tensors, layout, dtype, keeps, num_wide)
    kind = EngineMemory if tensors[0].device.type == "cpu" else StagedEngineMemory
    return kind(tensors, layout, dtype, keeps, num_wide)


def link_for(core: Core, memory: EngineMemory, config: _core.Config) -> Link:
    if isinstance(core, LedCore):
        assert isinstance(memory, LeaderMemory)
        return LedLink(core, memory, config)
    if isinstance(memory, StagedEngineMemory):
        return StagedLink(core, memory, config)
    return Link(core, memory)


def _tell_of_wide(places: list[Place]) -> None:
    wide = [place for place in places if place.is_wide]
    logger.info(
        "%d of %d parameters stay float32 ('%s'), %d of %d elements",
        len(wide),
        len(places),
        wide[0].name,
        sum(place.tensor.numel() for place in wide),
        sum(place.tensor.numel() for place in places),
    )


def _tell_of_converted(names: list[str], dtype: torch.dtype) -> None:
    logger.info(
        "converted to %s, because all parameters were float32: %s",
        str(dtype).removeprefix("torch."),
        ", ".join(f"'{name}'" for name in names),
    )


def _convert_frozen(
    model: torch.nn.Module, trained: list[torch.Tensor], dtype: torch.dtype
) -> list[str]:
    """Converts frozen parameters, because activations have 16 bits. Returns the names
    of these parameters.
    """
    known = {id(tensor) for tensor in trained}
    names = []
    for name, parameter in model.named_parameters():
        if id(parameter) not in known:
            parameter.grad = None
            parameter.data = parameter.detach().to(dtype)
            names.append(name)
    return names

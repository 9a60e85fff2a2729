# SPDX-License-Identifier: Apache-2.0
"""state_dict() and load_state_dict(), in torch's form and with Thinwire's additions."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any, Literal, cast

import torch

from .._agreement import agreed
from .._memory import tensors
from ..errors import CorruptCheckpoint, FailedPrecondition, InvalidArgument
from ._edits import same
from ._experts import KEY as EXPERTS
from ._flat import FlatOptimizer
from ._native import KEYWORDS, MASK, Native
from ._options import REFUSED, rate_of
from ._torch_state import of_torch, refuse_deepspeed

FORMAT = 1
# Arrays that torch saves as a parameter's state. These arrays contain one value per
# element; residuals are not among them.
PER_PARAMETER = (
    *("exp_avg", "exp_avg_sq", "denominator", "exp_avg_sq_fresh"),
    *("origin", "momentum_accumulator", "masters"),
)
_OF_AVERAGE = ("average.worker_error", "average.server_error")
# Keys of residuals, and of the layout that names their rank.
_OF_ONE_RANK = {"worker_error", "server_error", "residual_layout", *_OF_AVERAGE}
# The limits of LAMB's trust ratio.
_LIMITS = ("max_coeff", "min_coeff")
# Keys of sharded states: lean 1-bit Adam before its freeze, and an outer loop.
_SHARDED = {"shards", "outer.is_local"}
_DROPPING = 'load_state_dict(state, residuals="drop") loads the rest of it on any rank'
_ANY_RANKS = "thinwire.save and thinwire.load carry all of it over any number of ranks"


def complete(
    optimizer: torch.optim.Optimizer, packed: dict[str, Any]
) -> dict[str, Any]:
    """Adds all arrays and the record "thinwire" to torch's state. Local."""
    optimizer = cast(FlatOptimizer, optimizer)
    native = optimizer._made
    record: dict[str, Any] = {"format": FORMAT}
    if optimizer._states_are_beside:
        return packed | {"state": {}, "thinwire": record | {"is_beside": 1}}
    optimizer._edits.apply(is_collective=False)
    if native.optimizer.steps_behind:
        optimizer._notices.warn(
            "behind",
            "parameters differ from rank to rank now, and what is saved is of this rank: "
            "call optimizer.synchronize() before, or save inside of "
            "`with optimizer.evaluation():`",
        )
    state = tensors(native.optimizer.state_dict())
    mine = _saved_ids(optimizer, packed["param_groups"])
    step = optimizer._step_tensor.clone()
    entries: dict[Hashable, dict[str, torch.Tensor]] = {
        mine[id(place.tensor)]: {"step": step} for place in native.places
    }
    size = native.layout.size
    # Shards, like residuals, belong only to this rank.
    whole = [n for n in PER_PARAMETER if n in state and state[n].numel() == size]
    for name in whole:
        views = native.memory.views(state.pop(name))
        for place, view in zip(native.places, views, strict=True):
            entries[mine[id(place.tensor)]][name] = view
    comm = optimizer._comm
    record |= {"semantics": native.config.semantics.name}
    record |= {"rank": comm.rank, "world_size": comm.size}
    record |= {"run": optimizer._notices.to_text()}
    # Limits equal to those of the constructor are omitted, because states of 0.13.0
    # lack them, and torch.distributed.checkpoint needs a saved value for each key.
    own = {key: optimizer.defaults.get(key) for key in _LIMITS}
    groups = [
        {
            key: value
            for key, value in group.items()
            if key != EXPERTS and (key not in own or value != own[key])
        }
        for group in packed["param_groups"]
    ]
    added = {"state": entries, "thinwire": record | state, "param_groups": groups}
    return packed | added


def load(
    optimizer: FlatOptimizer,
    state_dict: Mapping[str, Any],
    residuals: Literal["keep", "drop"],
) -> None:
    """Loads a state like torch's load_state_dict(), but keeps the dtype of arrays.
    Local.
    """
    if residuals not in ("keep", "drop"):
        raise InvalidArgument(f"residuals must be 'keep' or 'drop', got {residuals!r}")
    saved_state = dict(state_dict)
    for before in optimizer._optimizer_load_state_dict_pre_hooks.values():
        result = before(optimizer, saved_state)
        if result is not None:
            saved_state = result
    refuse_deepspeed(saved_state)
    _require_form(saved_state)
    groups = deepcopy(saved_state["param_groups"])
    others = _other_numbers(optimizer, groups)
    native = optimizer._made
    native.memory.read_written()
    if not native.optimizer.steps_behind:  # otherwise the state replaces everything
        optimizer._edits.apply(is_collective=False)
    state = saved_state.get("state", {})
    record = saved_state.get("thinwire")
    mine = _saved_ids(optimizer, groups)
    keeps = residuals == "keep"
    if record is None and state:
        coupled = [g for g in groups if g.get("decoupled_weight_decay") is False]
        if any(g.get("weight_decay") for g in coupled):
            optimizer._notices.warn(
                "coupled",
                "the state is of torch.optim.Adam, which adds weight decay to the "
                "gradient; here it is decoupled, as AdamW's, and acts otherwise",
            )
    elif record is None and native.optimizer.steps > 0:
        raise FailedPrecondition(
            "the state to load is empty, and this optimizer has taken "
            f"{native.optimizer.steps} steps: make another one, which begins anew"
        )
    with _with_numbers(optimizer, others) as target:
        if record is not None:
            is_lean = target.config.optimizer_name() == "lean_onebit_adam"
            own = partial(_own, optimizer, record, state, mine, keeps)
            _put(target, agreed(optimizer._comm, own) if is_lean else own())
        elif state:
            target.optimizer.adopt(of_torch(optimizer._made, len(groups), state, mine))
    if record is not None:
        saved_by = record.get("world_size", optimizer._comm.size)
        optimizer._notices.continue_from(record.get("run"), saved_by)
    _take_groups(optimizer, groups)
    optimizer._edits.loaded()
    optimizer._notices.loaded(target.optimizer.take_notes())
    for after in optimizer._optimizer_load_state_dict_post_hooks.values():
        after(optimizer)


def _saved_ids(
    optimizer: FlatOptimizer, saved_groups: list[dict[str, Any]]
) -> dict[int, Hashable]:
    ids: dict[int, Hashable] = {}
    for group, saved in zip(optimizer.param_groups, saved_groups, strict=True):
        for parameter, number in zip(group["params"], saved["params"], strict=True):
            ids.setdefault(id(parameter), number)
    return ids


def saved_number(what: str, value: Any) -> float:
    """Returns a rate or decay. Raises CorruptCheckpoint or TypeError."""
    try:
        return rate_of(what, value)
    except InvalidArgument as error:
        raise CorruptCheckpoint(str(error)) from None


def _require_form(saved: Mapping[str, Any]) -> None:
    """Raises CorruptCheckpoint unless every part has the right type."""
    parts: list[tuple[str, Any, type[Any]]]
    parts = [("param_groups", saved.get("param_groups"), Sequence)]
    parts += [(k, saved[k], Mapping) for k in ("state", "thinwire") if k in saved]
    for name, value, kind in parts:
        if not isinstance(value, kind):
            raise CorruptCheckpoint(
                f"the state's '{name}' must be a {kind.__name__.lower()}, got "
                f"{type(value).__name__}"
            )
    for index, group in enumerate(saved["param_groups"]):
        if not isinstance(group, Mapping) or "params" not in group:
            raise CorruptCheckpoint(
                f"param_groups[{index}] of the state must be a mapping with 'params', "
                f"got {group!r:.60}"
            )
        for key in {"lr", "weight_decay"} & group.keys():
            saved_number(f"param_groups[{index}]['{key}'] of the state", group[key])
    for name, entry in saved.get("state", {}).items():
        if not isinstance(entry, Mapping):
            raise CorruptCheckpoint(
                f"the state of parameter {name!r} must be a mapping, got "
                f"{type(entry).__name__}"
            )
        for key, value in entry.items():
            if not isinstance(value, (torch.Tensor, int, float)):
                raise CorruptCheckpoint(
                    f"{key} of parameter {name!r} must be a tensor in the state, got "
                    f"{type(value).__name__}"
                )


def _other_numbers(
    optimizer: FlatOptimizer, saved_groups: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the numbers of each group that differ in the state.

    Raises ValueError or InvalidArgument for groups that do not fit.
    """
    own = optimizer._made.config.keywords()
    limits = {key: own[key] for key in _LIMITS if key in own}
    others: list[dict[str, Any]] = []
    groups = optimizer.param_groups
    if len(groups) != len(saved_groups):
        raise ValueError(
            "loaded state dict has a different number of parameter groups: "
            f"{len(saved_groups)}, the optimizer {len(groups)}"
        )
    for number, (group, saved) in enumerate(zip(groups, saved_groups, strict=True)):
        if len(group["params"]) != len(saved["params"]):
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the "
                f"size of optimizer's group {number}: {len(saved['params'])} "
                f"parameters, the optimizer {len(group['params'])}"
            )
        for key in ("amsgrad", "maximize"):
            if saved.get(key):
                raise InvalidArgument(
                    f"param_groups[{number}]['{key}'] of the state is set: {REFUSED[key]}"
                )
        others.append({})
        for key, value in {**limits, **optimizer._settings.fixed(number)}.items():
            if key not in saved or same(saved[key], value):
                continue
            if key not in ("betas", "eps", *_LIMITS):
                raise InvalidArgument(
                    f"param_groups[{number}]['{key}'] of the state is {saved[key]!r:.60}, "
                    f"the optimizer's {value!r}: make the optimizer with the state's"
                )
            others[-1][key] = saved[key]
    return others


@contextmanager
def _with_numbers(
    optimizer: FlatOptimizer, others: list[dict[str, Any]]
) -> Iterator[Native]:
    """Yields the native optimizer. If `others` contains numbers of any group, yields a
    new native optimizer with these numbers, which replaces the old one after the body.
    Collective in that case. If the body raises, nothing has changed.
    """
    if not any(others):
        yield optimizer._made
        return
    groups = optimizer.param_groups
    before = [dict(group) for group in groups]
    made = None
    try:
        for group, new in zip(groups, others, strict=True):
            group.update(new)
        made = optimizer._make(broadcast=False)
        yield made
    except BaseException:
        if made is not None:
            made.close()
        for group, old in zip(groups, before, strict=True):
            group.clear()
            group.update(old)
        raise
    optimizer._use(made)
    optimizer._notices.loaded(
        [
            f"param_groups[{number}]['{key}'] is {value!r:.60} now, as in the state"
            for number, new in enumerate(others)
            for key, value in new.items()
        ]
    )


def _take_groups(optimizer: FlatOptimizer, saved_groups: list[dict[str, Any]]) -> None:
    native = optimizer._made.optimizer
    for number, (group, saved) in enumerate(
        zip(optimizer.param_groups, saved_groups, strict=True)
    ):
        fixed = optimizer._settings.fixed(number)
        for key, value in saved.items():
            if key not in {"params", MASK, *REFUSED, *KEYWORDS, *fixed}:
                group[key] = value
    optimizer._settings.told(
        [native.learning_rate(g) for g in range(len(optimizer.param_groups))]
    )
    optimizer._written()


def _own(
    optimizer: FlatOptimizer,
    record: Mapping[str, Any],
    entries: Mapping[Hashable, Mapping[str, Any]],
    ids: Mapping[int, Hashable],
    keeps_residuals: bool,
) -> dict[str, Any]:
    if record.get("format") != FORMAT:
        raise CorruptCheckpoint(
            f"the state's format is {record.get('format')!r}, this version reads {FORMAT}"
        )
    if record.get("is_beside"):
        raise CorruptCheckpoint(
            "the state holds param_groups only, the rest of it is in a checkpoint of "
            "Thinwire's beside its file: load it as it was saved, by attach() or "
            "Checkpoint of thinwire.integrations, or with thinwire.load()"
        )
    record = _for_this_rank(optimizer, record, keeps_residuals)
    # A native state that names its rank contains one of these keys.
    says_its_rank = any(
        key in record for key in ("residual_layout", "shards", *_OF_AVERAGE)
    )
    added = {"format", "run"}
    if not says_its_rank:
        added |= {"rank", "world_size"}
    state = {key: value for key, value in record.items() if key not in added}
    native = optimizer._made
    size = native.layout.size
    views: dict[str, list[torch.Tensor]] = {}
    names = sorted({name for entry in entries.values() for name in entry} - {"step"})
    for k, place in enumerate(native.places):
        entry = entries.get(ids[id(place.tensor)])
        if entry is None:
            raise CorruptCheckpoint(f"the state lacks parameter '{place.name}'")
        for name in names:
            if name not in entry:
                raise CorruptCheckpoint(
                    f"the state lacks {name} of parameter '{place.name}'"
                )
            value = torch.as_tensor(entry[name])
            if value.numel() != place.tensor.numel():
                raise CorruptCheckpoint(
                    f"{name} of parameter '{place.name}' has {value.numel()} elements "
                    f"in the state, the parameter has {place.tensor.numel()}"
                )
            if name not in state:
                state[name] = torch.zeros(size, dtype=value.dtype)
                views[name] = native.memory.views(state[name])
            views[name][k].copy_(value.reshape(place.tensor.shape))
    return {
        key: value.detach().cpu().contiguous()
        if isinstance(value, torch.Tensor)
        else value
        for key, value in state.items()
    }


def _for_this_rank(
    optimizer: FlatOptimizer, record: Mapping[str, Any], keeps: bool
) -> Mapping[str, Any]:
    """Returns the record, with residuals only if they belong to this rank and `keeps`
    is true. The states of exact optimizers are the same on all ranks.

    Raises CorruptCheckpoint for shards of another rank and, if `keeps` is true, for
    residuals of another rank. Residuals of rank 0 are dropped instead, because many
    scripts save only the state of rank 0.
    """
    if keeps:
        _require_residuals(record)
    if not (_OF_ONE_RANK | _SHARDED) & record.keys():
        return record
    rank, size = optimizer._comm.rank, optimizer._comm.size
    saved_by, ranks = (_place(record, key) for key in ("rank", "world_size"))
    is_own = (saved_by, ranks) == (rank, size)
    if is_own and keeps:
        return record
    whose = f"the state is of rank {saved_by} of {ranks}, this is rank {rank} of {size}"
    if not is_own and _SHARDED & record.keys():
        raise CorruptCheckpoint(
            f"{whose}, and each rank has a part of it: {_ANY_RANKS}"
        )
    whose += ", and residuals belong to one rank"
    if keeps and saved_by != 0:
        raise CorruptCheckpoint(f"{whose}: {_DROPPING}, and {_ANY_RANKS}")
    if keeps and rank == (1 if ranks == size else 0):
        optimizer._notices.warn(
            "residuals",
            f"{whose}: those of the other ranks begin at 0, which loses one rounding "
            f"error. {_DROPPING}, and {_ANY_RANKS}",
        )
    return _without_residuals(record, size)


def _require_residuals(record: Mapping[str, Any]) -> None:
    """Raises CorruptCheckpoint if the record lacks residuals although several ranks
    have averaged in 4 or 8 bits or as factors.
    """
    averages = any(record.get(key, 0) != 0 for key in ("average_bits", "low_rank"))
    if not averages or _place(record, "world_size") == 1:
        return
    for key in (*_OF_AVERAGE, "residual_layout"):
        if key not in record:
            raise CorruptCheckpoint(f"the state lacks '{key}': {_DROPPING}")


def _place(record: Mapping[str, Any], key: str) -> int:
    value = record.get(key)
    least = 1 if key == "world_size" else 0
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise CorruptCheckpoint(
            f"the state's '{key}' must be an integer >= {least}, got {value!r:.60}"
        )
    return value


def _without_residuals(record: Mapping[str, Any], size: int) -> dict[str, Any]:
    kept = {key: value for key, value in record.items() if key not in _OF_ONE_RANK}
    names = str(record.get("arrays", "")).splitlines()
    if "arrays" in record:
        kept["arrays"] = "".join(
            f"{name}\n" for name in names if name not in _OF_ONE_RANK
        )
    if record.get("world_size") not in (None, size):
        kept["saved_world"] = record["world_size"]
    return kept


def _put(native: Native, state: dict[str, Any]) -> None:
    saved = str(state.get("optimizer", "")).removeprefix("deepspeed ")
    if saved == native.config.optimizer_name():
        native.optimizer.load_state_dict(state)
    else:
        native.optimizer.adopt(state)

# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: all of one is there, or nothing, and any number of ranks can load it."""

from __future__ import annotations

import copy
import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from . import _core, _log
from ._agreement import agreed
from ._paths import path_of, require_utf8
from .errors import CorruptCheckpoint, InvalidArgument, Unavailable
from .optim._base import _Optimizer
from .optim._options import _member
from .optim._run import SAVED_AS, saved_in
from .optim._settings import from_text, parse, to_text
from .optim._state import tensors

if TYPE_CHECKING:
    from .engine import Engine
    from .engine._others import ModuleOthers
    from .optim._native import Training

Path = str | os.PathLike[str]
Values = Mapping[str, Any]

OWN_NAMES = "thinwire/"
"""Names that begin so are this package's."""
RANDOM = OWN_NAMES + "random_state"
GROUPS = OWN_NAMES + "param_groups"

_SAVE = (
    "asynchronous",
    "durable",
    "check_replicas",
    "local_steps",
    "residuals",
    "frozen",
    "attachments",
)
_LOAD = (
    "weights_only",
    "fall_back",
    "allow_rounding",
    "share_reads",
    "rename",
    "allow_missing",
    "ignore",
)


@dataclass(frozen=True)
class LoadReport:
    """What a load found."""

    path: str
    step: int
    run: str
    """The same for all checkpoints of a run."""
    world: int
    """Ranks that saved it."""
    optimizer: str
    precision: str
    config: str
    """The configuration of the run that saved it, as JSON."""
    extra: dict[str, Any]
    """What save() was given as `extra`."""
    own: dict[str, Any]
    """What this rank gave as `own`; empty on ranks that were not there."""
    own_of_ranks: list[dict[str, Any]]
    """All that were saved."""
    notes: list[str]
    """What is not as it was, a line each."""
    seconds: float
    bytes: int
    """Read by all ranks."""


def save(
    root: Path,
    trained: Engine | _Optimizer,
    step: int | None = None,
    extra: Values | None = None,
    *,
    own: Values | None = None,
    module: torch.nn.Module | None = None,
    **options: Any,
) -> _core.SaveReport:
    """Collective: writes ROOT/step-<step>, all of it or nothing, done on return unless
    `asynchronous`. Checkpoints that were there stay. Weights are under the parameters'
    names in model.safetensors; the state of torch's CPU generator is saved, too, and the
    numbers in an optimizer's param_groups.

    step: names the checkpoint; None: the number of applied steps, an engine's in any case.
    extra: int, float, str and tensors by name, equal on all ranks; own: of this rank. A
      scheduler's state goes there as json.dumps(scheduler.state_dict()), and comes back
      after load() by scheduler.load_state_dict().
    module: with an optimizer, whose buffers and frozen parameters are to be saved, too.
    options: asynchronous (engines only), durable, check_replicas, local_steps ("as_is",
      "synchronize"), residuals ("per_rank", "mean"), frozen, attachments ({name: bytes}).

    Raises InvalidArgument where ranks differ in what should be equal, Unavailable with
    path and cause where it cannot be written, FailedPrecondition inside a window of
    accumulation; on all ranks.
    """
    _require_ours("save", trained)
    chosen, both, path = agreed(
        trained._comm,
        lambda: (
            _save_options(options, trained, step, module),
            extras_of(extra, own),
            path_of("root", root),
        ),
    )
    if not isinstance(trained, _Optimizer):
        return trained._save(path, both, chosen)
    training = agreed(trained._comm, lambda: _to_save(trained))
    trained._edits.take_in(is_collective=True)
    both[0][GROUPS] = to_text(trained.param_groups)
    both[1][SAVED_AS] = trained._notices.run.to_text()
    beside = _beside(module, trained, training.comm.rank)
    report = _core.save(
        training.comm,
        training.layout,
        training.params,
        training.native,
        path,
        training.native.steps if step is None else step,
        semantics=training.config.semantics.name,
        config=_text_of(training.config),
        others=None if beside is None else beside.describe(),
        extra=_core.Extra(*both),
        options=chosen,
    )
    _log.forward(training.comm)
    return report


def load(
    path: Path,
    trained: Engine | _Optimizer,
    *,
    module: torch.nn.Module | None = None,
    **options: Any,
) -> LoadReport:
    """Collective: goes on from a checkpoint, or from the newest complete one in a
    directory of them. Saved by as many ranks, the run goes on with the same bits; any
    other number, and any ZeRO stage, will do. torch's CPU generator is set, too, and an
    optimizer's param_groups get the saved numbers (where there are as many groups).

    module: as that of save().
    options: weights_only (parameters alone, also of a safetensors file or a Hugging Face
      folder; masters are the saved ones), fall_back (to the one before, where the newest
      is damaged), allow_rounding, share_reads, rename ({old: new}), allow_missing and
      ignore (names, or globs with *).

    Raises Unavailable where there is none or it cannot be read, CorruptCheckpoint naming
    what is damaged or does not fit; on all ranks, and nothing has changed on any.
    """
    report = resume(path, trained, module=module, **options)
    if report is None:
        raise Unavailable(f"{os.fspath(path)}: there is no complete checkpoint")
    return report


def resume(
    path: Path,
    trained: Engine | _Optimizer,
    *,
    module: torch.nn.Module | None = None,
    **options: Any,
) -> LoadReport | None:
    """Collective: as load(), or None where there is no complete checkpoint yet."""
    _require_ours("load", trained)
    chosen, found_at = agreed(
        trained._comm, lambda: (load_options(options), path_of("path", path))
    )
    if not isinstance(trained, _Optimizer):
        if module is not None:
            raise InvalidArgument("load: an engine's module is its own, got one")
        return trained._resume(found_at, chosen)
    training = agreed(trained._comm, trained._training)
    beside = _beside(module, trained, training.comm.rank)

    def accept(found: _core.LoadReport) -> None:
        if not chosen.weights_only:
            random_state_in(found)
            parse(found.common.get(GROUPS, "[]"), trained.param_groups)

    try:
        native = _core.resume(
            training.comm,
            training.layout,
            training.params,
            training.native,
            found_at,
            others=None if beside is None else beside.describe(),
            options=chosen,
            accept=accept,
        )
    except CorruptCheckpoint as error:
        if not re.search(r"^missing param\.0\b", str(error), re.MULTILINE):
            raise
        why = "the optimizer has no names of its parameters: give it named_parameters()"
        raise CorruptCheckpoint(f"{error}\n{why}") from None
    _log.forward(training.comm)
    if native is None:
        return None
    if beside is not None:
        beside.write_back()
    groups = tensors(native.common).get(GROUPS)
    if chosen.weights_only:
        trained._written()
    else:
        trained._loaded()
        trained._notices.run.continue_from(saved_in(native))
        if groups is not None:
            from_text(groups, trained.param_groups)
    return finish_load(native, sets_random_state=not chosen.weights_only)


# ---- shared with Engine


def save_options(given: Mapping[str, Any]) -> _core.SaveOptions:
    """Raises TypeError for a name that there is not, with the nearest one, and
    InvalidArgument for a value."""
    chosen = _core.SaveOptions()
    for name, value in _checked(given, _SAVE, "save"):
        if name == "local_steps":
            value = _member(_core.LocalSteps, name, value)
        elif name == "residuals":
            value = _member(_core.Residuals, name, value)
        elif name == "attachments":
            value = list(dict(value).items())
        _set(chosen, name, value)
    return chosen


def _save_options(
    given: Mapping[str, Any],
    trained: Engine | _Optimizer,
    step: int | None,
    module: torch.nn.Module | None,
) -> _core.SaveOptions:
    if not isinstance(trained, _Optimizer):
        steps = trained._native.steps
        if module is not None or step not in (None, steps):
            raise InvalidArgument(
                f"save: an engine's step is {steps}, and its module its own; got step "
                f"{step}{'' if module is None else ' and a module'}"
            )
    elif given.get("asynchronous"):
        raise InvalidArgument("asynchronous: must be False with an optimizer, got True")
    return save_options(given)


def load_options(given: Mapping[str, Any]) -> _core.LoadOptions:
    """As save_options()."""
    chosen = _core.LoadOptions()
    for name, value in _checked(given, _LOAD, "load"):
        if name == "rename":
            value = list(dict(value).items())
        elif name in ("allow_missing", "ignore"):
            value = [value] if isinstance(value, str) else list(value)
        _set(chosen, name, value)
    return chosen


def random_state_in(found: _core.LoadReport) -> torch.Tensor | None:
    """Local: the saved state of torch's CPU generator, if there is one. Raises
    CorruptCheckpoint if this torch cannot take it."""
    saved = found.own.get(RANDOM)
    if saved is None:
        return None
    try:
        state: torch.Tensor = tensors({RANDOM: saved})[RANDOM].clone()
        torch.Generator().set_state(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise CorruptCheckpoint(
            f"the random state is none of this torch's: {error}"
        ) from None
    return state


def finish_load(native: _core.LoadReport, *, sets_random_state: bool) -> LoadReport:
    """Local: takes out of a native report what is this package's, and sets torch's CPU
    generator."""
    own = tensors(native.own)
    state = random_state_in(native) if sets_random_state else None
    if state is not None:
        torch.set_rng_state(state)
    names = ("path", "step", "run", "world", "optimizer", "precision", "config")
    return LoadReport(
        **{name: getattr(native, name) for name in names},
        extra=_users(tensors(native.common)),
        own=_users(own),
        own_of_ranks=[_users(tensors(state)) for state in native.own_of_ranks],
        notes=list(native.notes),
        seconds=native.seconds,
        bytes=native.bytes,
    )


def extras_of(
    extra: Values | None, own: Values | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    both = dict(extra or {}), dict(own or {})
    for what, values in zip(("extra", "own"), both, strict=True):
        for name, value in values.items():
            if not isinstance(name, str) or name.startswith(OWN_NAMES):
                raise InvalidArgument(
                    f"{what}: names must be text that does not begin with "
                    f"'{OWN_NAMES}', got {name!r}"
                )
            require_utf8(what, name)
            values[name] = _storable(f"{what}[{name!r}]", value)
    both[1][RANDOM] = torch.get_rng_state()
    return both


def _storable(what: str, value: Any) -> int | float | str | torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().contiguous().view(-1)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise InvalidArgument(f"{what}: must be in -2^63 .. 2^63 - 1, got {value}")
        return int(value)
    if isinstance(value, str):
        require_utf8(what, value)
        return value
    if isinstance(value, float):
        return value
    raise InvalidArgument(
        f"{what}: must be an int, float, str or tensor, got {type(value).__name__}"
    )


def _users(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if not k.startswith(OWN_NAMES)}


def _checked(
    given: Mapping[str, Any], known: tuple[str, ...], what: str
) -> list[tuple[str, Any]]:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise TypeError(f"{what}() got an unexpected option '{name}'{hint}")
    return list(given.items())


def _set(options: Any, name: str, value: Any) -> None:
    try:
        setattr(options, name, value)
    except TypeError:
        raise TypeError(f"{name}: got {value!r} of {type(value).__name__}") from None


def _require_ours(what: str, trained: object) -> None:
    from .engine import Engine

    if not isinstance(trained, (_Optimizer, Engine)):
        raise TypeError(
            f"{what}: must be given an engine or an optimizer of Thinwire's, got "
            f"{type(trained).__name__}"
        )


def _to_save(optimizer: _Optimizer) -> Training:
    """What is written has the rates that param_groups have now: a scheduler has set
    them since the last step."""
    training = optimizer._training()
    optimizer._settings.apply(optimizer.param_groups, optimizer._made)
    return training


def _text_of(config: _core.Config) -> str:
    plain = copy.copy(config)
    plain.optimizer.groups = []  # the program's, which no file has
    return plain.to_json()


def _beside(
    module: torch.nn.Module | None, optimizer: _Optimizer, rank: int
) -> ModuleOthers | None:
    if module is None:
        return None
    from .engine._others import ModuleOthers

    memory = optimizer._memory
    return ModuleOthers(module, memory.parameters, memory.names, rank)

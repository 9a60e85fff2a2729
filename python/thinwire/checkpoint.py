# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: each is complete or absent, and any number of ranks can load it."""

from __future__ import annotations

import copy
import operator
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from . import _core, _log
from ._agreement import agreed
from ._checkpoints import (
    OWN_NAMES,
    SAVED_AS,
    Loaded,
    LoadReport,
    Saved,
    Values,
    extras_of,
    finish_load,
    load_options,
    random_state_in,
    save_options,
    saved_in,
)
from ._paths import path_of
from .comm.calls import in_call
from .errors import CorruptCheckpoint, InvalidArgument, Unavailable
from .optim._base import _Optimizer
from .optim._settings import from_text, numbers_of, parse, to_text

if TYPE_CHECKING:
    from .engine import Engine
    from .engine._others import ModuleOthers
    from .optim._native import Native

Path = str | os.PathLike[str]

GROUPS = OWN_NAMES + "param_groups"


@in_call("save()")
def save(
    root: Path,
    trained: Engine | _Optimizer,
    step: int | None = None,
    extra: Values | None = None,
    *,
    own: Values | None = None,
    module: torch.nn.Module | None = None,
    **options: Any,
) -> Saved:
    """Writes ROOT/step-<step>, completely or not at all. Collective.

    The call blocks until the checkpoint is complete, unless it is `asynchronous`.
    Existing checkpoints stay. Weights are in model.safetensors, under the parameters'
    names. The checkpoint also contains the state of torch's CPU generator and the
    numbers in an optimizer's param_groups.

    step: names the checkpoint. None means the number of applied steps, which engines
      always use.
    extra: int, float, str and tensors by name, equal on all ranks.
    own: like `extra`, but different on each rank. To save a scheduler, put its state
      into `extra` or `own` as json.dumps(scheduler.state_dict()). After load(), pass
      the parsed state to scheduler.load_state_dict().
    module: the module of an optimizer, to save the module's buffers and frozen
      parameters as well.
    options: asynchronous (engines only), durable, check_replicas, frozen; local_steps
      is "as_is" or "synchronize", and attachments is {name: bytes}. "next_sync" acts
      like "as_is" here.

    Raises InvalidArgument if ranks differ in values that must be equal. Raises
    Unavailable with path and cause if a file cannot be written, and FailedPrecondition
    inside a window of accumulation. All ranks raise together.
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
    native, beside = agreed(
        trained._comm, lambda: (_to_save(trained), _beside(module, trained))
    )
    if beside is not None and chosen.frozen:
        beside.warn_at_save(trained._notices)
    trained._edits.apply(is_collective=True)
    both[0][GROUPS] = to_text(trained.param_groups)
    both[1][SAVED_AS] = trained._notices.to_text()
    report = _core.save(
        trained._comm,
        native.layout,
        native.memory.handed_params,
        native.optimizer,
        path,
        native.optimizer.steps if step is None else step,
        semantics=native.config.semantics.name,
        config=_text_of(native.config),
        others=None if beside is None else beside.describe(),
        extra=both,
        options=chosen,
    )
    if chosen.local_steps == _core.LocalSteps.synchronize:
        trained._written()
    _log.forward(trained._comm)
    return report


@in_call("load()")
def load(
    path: Path,
    trained: Engine | _Optimizer,
    *,
    module: torch.nn.Module | None = None,
    **options: Any,
) -> LoadReport:
    """Resumes from a checkpoint, or from the newest complete one in a directory.
    Collective.

    If the same number of ranks saved the checkpoint, the run continues with the same
    bits. Any other number of ranks and any ZeRO stage can also load it. The call also
    sets torch's CPU generator. An optimizer's param_groups take the saved numbers if
    the number of groups is the same.

    module: as for save().
    options: weights_only loads only parameters and the saved masters, and also accepts
      a safetensors file or a Hugging Face folder. fall_back loads the previous
      checkpoint if the newest is damaged. rename is {old: new}, in full names, also for
      buffers and frozen parameters. In names that rename does not list, the prefixes of
      wrappers, "module." and "_orig_mod.", are ignored. allow_missing and ignore are
      names, or globs with *. With strict=False any parameters, but not all, may be
      missing in the checkpoint or in the model. Further options are allow_rounding and
      share_reads.

    Raises Unavailable if there is no readable checkpoint. Raises CorruptCheckpoint
    naming the part that is damaged or does not fit. All ranks raise together, and
    nothing has changed on any rank.
    """
    report = resume(path, trained, module=module, **options)
    if report is None:
        raise Unavailable(f"{os.fspath(path)}: there is no complete checkpoint")
    return report


@in_call("resume()")
def resume(
    path: Path,
    trained: Engine | _Optimizer,
    *,
    module: torch.nn.Module | None = None,
    **options: Any,
) -> LoadReport | None:
    """Loads like load(), or returns None if there is no checkpoint yet. Collective.

    Raises CorruptCheckpoint if there are checkpoints but none can be loaded. The
    remains of an interrupted save do not count. Raises InvalidArgument if only
    subdirectories contain checkpoints, as Engine.save_checkpoint() writes them. The
    message contains the call that loads them. For a directory of DeepSpeed,
    InvalidArgument names the command that converts it.
    """
    report = _resume(path, trained, module, options)
    if report is None:
        from .engine._saving import refuse_tagged

        agreed(trained._comm, lambda: refuse_tagged(path_of("path", path)))
    return report


def _resume(
    path: Path,
    trained: Engine | _Optimizer,
    module: torch.nn.Module | None,
    options: dict[str, Any],
) -> LoadReport | None:
    _require_ours("load", trained)

    def checked() -> tuple[_core.LoadOptions, str]:
        if module is not None and not isinstance(trained, _Optimizer):
            raise InvalidArgument("load: an engine's module is its own, got one")
        return load_options(options), path_of("path", path)

    chosen, found_at = agreed(trained._comm, checked)
    if not isinstance(trained, _Optimizer):
        return trained._resume(found_at, chosen)
    native, beside = agreed(
        trained._comm, lambda: (_at_home(trained), _beside(module, trained))
    )

    def accept(native: dict[str, Any]) -> None:
        found = Loaded.of(native, trained._comm.rank)
        if not chosen.weights_only:
            random_state_in(found)
            parse(found.common.get(GROUPS, "[]"), trained.param_groups)

    try:
        found = _core.resume(
            trained._comm,
            native.layout,
            native.memory.handed_params,
            native.optimizer,
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
    _log.forward(trained._comm)
    if found is None:
        return None
    saved = Loaded.of(found, trained._comm.rank)
    if beside is not None:
        beside.write_back()
        beside.add_note_of_load(saved.notes)
    groups = saved.common.get(GROUPS)
    if chosen.weights_only:
        trained._written()
        return finish_load(saved, sets_random_state=False)
    asked = numbers_of(trained.param_groups)
    trained._loaded()
    trained._notices.continue_from(saved_in(saved), len(saved.own_of_ranks))
    if groups is not None:
        from_text(groups, trained.param_groups)
    report = finish_load(saved, sets_random_state=True)
    report.notes.extend(
        f"{name} is {number:g} now, as saved; the script had {asked[name]:g}"
        for name, number in numbers_of(trained.param_groups).items()
        if number != asked[name]
    )
    return report


def _save_options(
    given: Mapping[str, Any],
    trained: Engine | _Optimizer,
    step: int | None,
    module: torch.nn.Module | None,
) -> _core.SaveOptions:
    if not isinstance(trained, _Optimizer):
        steps = trained._training.native.steps
        if module is not None or step not in (None, steps):
            raise InvalidArgument(
                f"save: an engine's step is {steps}, and its module its own; got step "
                f"{step}{'' if module is None else ' and a module'}"
            )
        return save_options(given)
    if step is not None and not (
        hasattr(step, "__index__") and 0 <= operator.index(step) < 2**63
    ):
        raise InvalidArgument(f"step: must be an integer in [0, 2^63), got {step!r}")
    if given.get("asynchronous"):
        raise InvalidArgument("asynchronous: must be False with an optimizer, got True")
    return save_options(given)


def _require_ours(what: str, trained: object) -> None:
    from .engine import Engine

    if not isinstance(trained, (_Optimizer, Engine)):
        raise TypeError(
            f"{what}: must be given an engine or an optimizer of Thinwire's, got "
            f"{type(trained).__name__}"
        )


def _at_home(optimizer: _Optimizer) -> Native:
    native = optimizer._made
    optimizer._edits.make_writable()
    return native


def _to_save(optimizer: _Optimizer) -> Native:
    """Returns the state to write, with the rates that a scheduler has set since the
    last step.
    """
    native = _at_home(optimizer)
    optimizer._settings.apply(optimizer.param_groups, native)
    optimizer._settings.apply_masks(
        optimizer.param_groups, native.optimizer, native.places
    )
    return native


def _text_of(config: _core.Config) -> str:
    plain = copy.copy(config)
    plain.set_groups([])  # the program sets groups, and no file contains them
    return plain.to_json()


def _beside(
    module: torch.nn.Module | None, optimizer: _Optimizer
) -> ModuleOthers | None:
    if module is None:
        return None
    from .engine._others import ModuleOthers

    memory = optimizer._memory
    return ModuleOthers(module, memory.parameters, memory.names, optimizer._comm.rank)

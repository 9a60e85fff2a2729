# SPDX-License-Identifier: Apache-2.0
"""Options and reports of checkpoints, common to engines and optimizers."""

from __future__ import annotations

import base64
import difflib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from . import _core
from ._memory import tensors
from ._paths import require_utf8
from .errors import CorruptCheckpoint, InvalidArgument
from .optim._options import _member

Values = Mapping[str, Any]

OWN_NAMES = "thinwire/"
"""Prefix of this package's names."""
RANDOM = OWN_NAMES + "random_state"
SAVED_AS = OWN_NAMES + "run"
"""Name of a run's totals among the values that each rank saves."""
_OF_FOLLOWERS = OWN_NAMES + "own_of_followers"
"""Name of an entry in a leader's own values, with its rank and the own values of the
host's other ranks.
"""


@dataclass(frozen=True, kw_only=True)
class _Report:
    """Native results of a load that need no conversion."""

    path: str
    step: int
    run: str
    """Id of the run, the same for all of its checkpoints."""
    world: int
    """Number of ranks that saved the checkpoint."""
    optimizer: str
    precision: str
    config: str = field(repr=False)
    """The configuration of the saved run, as JSON."""
    notes: list[str]
    """Differences from the saved run, one per line."""
    seconds: float
    bytes: int
    """Bytes that all ranks read."""


def _report_fields(native: Loaded) -> dict[str, Any]:
    return {field.name: getattr(native, field.name) for field in fields(_Report)}


@dataclass(frozen=True, kw_only=True)
class LoadReport(_Report):
    """Results of a load."""

    extra: dict[str, Any]
    """The argument `extra` of save()."""
    own: dict[str, Any]
    """The argument `own` of save() on this rank; empty if the saved run had no such
    rank.
    """
    own_of_ranks: list[dict[str, Any]]
    """The arguments `own` of all ranks of the saved run."""


@dataclass(frozen=True, kw_only=True)
class Loaded(_Report):
    """Native results of a load with tensors, as a leader sends them to followers."""

    scalars: dict[str, Any]
    common: dict[str, Any]
    own: dict[str, Any]
    own_of_ranks: list[dict[str, Any]]

    @classmethod
    def of(cls, native: Mapping[str, Any], rank: int) -> Loaded:
        """Converts native results, and separates the own values that leaders saved for
        their hosts.
        """
        arrays = {name: tensors(native[name]) for name in ("scalars", "common")}
        own_of_ranks = _divided([tensors(own) for own in native["own_of_ranks"]])
        found = {**native, **arrays, "own": {}, "own_of_ranks": own_of_ranks}
        return cls(**found).of_rank(rank)

    def of_rank(self, rank: int) -> Loaded:
        known = rank < len(self.own_of_ranks)
        return replace(self, own=self.own_of_ranks[rank] if known else {})


@dataclass(frozen=True)
class SavedByLeader:
    """A native SaveReport, as a leader sends it to followers."""

    path: str
    step: int
    bytes: int
    seconds: float
    waited_seconds: float


Saved = _core.SaveReport | SavedByLeader


def own_of_host(ranks: Sequence[int], own: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the values that a leader saves for itself and its followers."""
    followers = dict(zip(ranks[1:], own[1:], strict=True))
    return {**own[0], _OF_FOLLOWERS: packed((ranks[0], followers))}


def _divided(own_of_ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the own values of all ranks. Raises CorruptCheckpoint."""
    found: dict[int, dict[str, Any]] = {}
    for number, own in enumerate(own_of_ranks):
        text = own.pop(_OF_FOLLOWERS, None)
        rank, followers = (number, {}) if text is None else unpacked(text)
        found |= {rank: own, **followers}
    return [found[rank] for rank in sorted(found)]


def packed(value: Any) -> str:
    file = io.BytesIO()
    torch.save(value, file)
    return base64.b64encode(file.getvalue()).decode()


def unpacked(text: str) -> Any:
    """Returns the value of packed(). Raises CorruptCheckpoint."""
    try:
        return torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)
    except Exception as error:  # noqa: BLE001  a damaged pickle raises anything
        raise CorruptCheckpoint(
            f"values of followers cannot be read: {error}"
        ) from None


def save_options(given: Mapping[str, Any]) -> _core.SaveOptions:
    """Returns the options. Raises TypeError for an unknown option, and InvalidArgument
    for an invalid value.
    """
    chosen = _core.SaveOptions()
    for name, value in _checked(given, chosen, "save"):
        if name == "local_steps":
            value = _member(_core.LocalSteps, name, value)
        elif name == "attachments":
            value = list(_mapping(name, value).items())
        _set(chosen, name, value)
    return chosen


def load_options(given: Mapping[str, Any]) -> _core.LoadOptions:
    chosen = _core.LoadOptions()
    for name, value in _checked(given, chosen, "load"):
        if name == "rename":
            value = list(_mapping(name, value).items())
        elif name in ("allow_missing", "ignore"):
            if not isinstance(value, Iterable):
                raise _not(name, "a str or a sequence of them", value)
            value = [value] if isinstance(value, str) else list(value)
        _set(chosen, name, value)
    return chosen


def saved_in(report: Loaded) -> str | None:
    """Returns the saved totals of this rank, or of the first rank that has any."""
    for values in (report.own, *report.own_of_ranks):
        text = values.get(SAVED_AS)
        if isinstance(text, str):
            return text
    return None


def random_state_in(found: Loaded) -> torch.Tensor | None:
    """Returns the saved state of torch's CPU generator. Raises CorruptCheckpoint."""
    saved = found.own.get(RANDOM)
    if saved is None:
        return None
    try:
        state: torch.Tensor = tensors({RANDOM: saved})[RANDOM].clone()
        torch.Generator().set_state(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise CorruptCheckpoint(
            f"the saved random state does not fit this version of torch: {error}"
        ) from None
    return state


def finish_load(found: Loaded, *, sets_random_state: bool) -> LoadReport:
    """Removes this package's values from a report, and sets the random state."""
    state = random_state_in(found) if sets_random_state else None
    if state is not None:
        torch.set_rng_state(state)
    return LoadReport(
        **_report_fields(found),
        extra=_users(found.common),
        own=_users(found.own),
        own_of_ranks=[_users(own) for own in found.own_of_ranks],
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


# Options of earlier versions, and their replacements.
_REMOVED = {"residuals": "leave it out; each rank's residuals are always saved"}


def _checked(
    given: Mapping[str, Any], options: object, what: str
) -> list[tuple[str, Any]]:
    known = [name for name in dir(options) if not name.startswith("_")]
    for name in given:
        if name in _REMOVED:
            raise TypeError(
                f"{what}() has no option '{name}' any more: {_REMOVED[name]}"
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise TypeError(f"{what}() got an unexpected option '{name}'{hint}")
    return list(given.items())


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _not(name, "a dict", value)
    return value


def _not(name: str, kind: str, value: object) -> TypeError:
    return TypeError(f"{name} must be {kind}, got {value!r} of {type(value).__name__}")


def _set(options: Any, name: str, value: Any) -> None:
    try:
        setattr(options, name, value)
    except TypeError:
        raise TypeError(f"{name}: got {value!r} of {type(value).__name__}") from None

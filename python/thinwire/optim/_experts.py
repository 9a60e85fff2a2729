# SPDX-License-Identifier: Apache-2.0
"""Groups of experts: parameters that only some ranks hold."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .. import _core
from .._agreement import agreed
from ..errors import InvalidArgument
from ._parameters import Place

KEY = "expert_group"


class Experts:
    """The communicators of the process groups of experts."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, _core.Communicator]] = {}
        self.of_groups: list[tuple[int, _core.Communicator]] = []
        """Pairs of a group's number and its communicator."""

    def join(self, comm: _core.Communicator, groups: list[dict[str, Any]]) -> None:
        """Uses the present groups' communicators, and makes missing ones in the order
        of groups. Collective.

        Raises InvalidArgument on all ranks for a value that is not a process group of
        this rank.
        """
        named = [(k, g[KEY]) for k, g in enumerate(groups) if g.get(KEY) is not None]
        agreed(comm, lambda: _require_groups(named, len(groups)))
        self.of_groups = []
        for number, group in named:
            self.of_groups.append((number, self.of(group)))

    def of(self, group: Any) -> _core.Communicator:
        """Returns the communicator of a process group. Collective the first time."""
        from ..comm import communicator_for

        if id(group) not in self._made:
            self._made[id(group)] = (
                group,
                communicator_for(group, names_world_ranks=True),
            )
        return self._made[id(group)][1]

    @property
    def all(self) -> list[_core.Communicator]:
        return [made for _, made in self._made.values()]

    @property
    def owned(self) -> list[_core.Communicator]:
        """Returns the communicators that were made here, and must be closed."""
        return [made for given, made in self._made.values() if given is not made]

    def held(
        self, comm: _core.Communicator, places: list[Place]
    ) -> list[tuple[_core.Communicator, list[Place]]]:
        """Returns the communicators, in the order of memory, with the parameters that
        all ranks of each communicator hold.
        """
        of_group = {number: id(c) for number, c in self.of_groups}
        parts = [(comm, [p for p in places if p.group not in of_group])]
        for c in {id(c): c for _, c in self.of_groups}.values():
            parts.append((c, [p for p in places if of_group.get(p.group) == id(c)]))
        return parts

    def require_same(
        self, comm: _core.Communicator, places: list[Place], described: str, rest: str
    ) -> None:
        """Checks that ranks agree. Collective. Ranks that hold the same parameters must
        have the same lines of `described`, one per parameter, and all ranks the same
        `rest`. If texts differ, raises InvalidArgument on all ranks.
        """
        of = dict(
            zip((p.name for p in places), described.split("\n")[:-1], strict=True)
        )

        def lines(held: list[Place]) -> str:
            return "".join(of[place.name] + "\n" for place in held)

        (_, dense), *parts = self.held(comm, places)
        experts = "".join(
            f"experts in group {number}\n" for number, _ in self.of_groups
        )
        comm.require_same("parameters", lines(dense) + experts + rest)
        refused: list[InvalidArgument] = []
        for c, held in parts:
            try:
                c.require_same("the experts of one group", lines(held))
            except InvalidArgument as error:
                refused.append(InvalidArgument(f"{error}{self._ranks_of(c)}"))

        def check() -> None:
            if refused:
                raise refused[0]

        agreed(comm, check)

    def _ranks_of(self, comm: _core.Communicator) -> str:
        """Returns a suffix for error messages with rank numbers of a process group,
        which lists the group's global ranks.
        """
        for group, made in self._made.values():
            if made is comm and isinstance(group, dist.ProcessGroup):
                ranks = ", ".join(map(str, dist.get_process_group_ranks(group)))
                return f"; the ranks of this group, from 0 on, are ranks {ranks} of all"
        return ""

    def broadcast(
        self, comm: _core.Communicator, places: list[Place], values: torch.Tensor
    ) -> None:
        """Sends the first holder's part of `values` to other holders. Collective."""
        at = 0
        for c, held in self.held(comm, places):
            size = sum(place.tensor.numel() for place in held)
            if c.size > 1 and size > 0:
                c.broadcast(values.narrow(0, at, size).view(torch.uint8), 0)
            at += size


def in_order(places: list[Place], groups: list[dict[str, Any]]) -> list[Place]:
    """Sorts dense parameters first, then groups of experts, and last the fp32
    parameters of a 16-bit model.
    """
    first: dict[int, int] = {}
    keys = []
    for number, group in enumerate(groups):
        given = group.get(KEY)
        keys.append(0 if given is None else first.setdefault(id(given), number + 1))
    return sorted(places, key=lambda place: (place.is_wide, keys[place.group]))


def _require_groups(named: list[tuple[int, Any]], count: int) -> None:
    if len(named) == count:
        raise InvalidArgument(
            f"{KEY}: some groups must be without it, all {count} have one: parameters "
            "that all ranks hold need none"
        )
    for number, group in named:
        kinds = (dist.ProcessGroup, _core.Communicator)
        if not isinstance(group, kinds) and not hasattr(group, "exchange"):
            raise InvalidArgument(
                f"param_groups[{number}]['{KEY}']: must be a ProcessGroup of which this "
                f"rank is a member, got {group!r:.60}"
            )

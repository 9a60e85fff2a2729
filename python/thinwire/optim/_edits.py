# SPDX-License-Identifier: Apache-2.0
"""External writes between steps, into param_groups and into parameters that the
optimizer stores a second time.

Before each step, an optimizer looks for such writes. After its own writes, it records
the new values.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from .. import _core
from .._agreement import gathered
from .._memory import tensors
from ..comm.calls import in_part
from ..errors import CommFailure, FailedPrecondition, InvalidArgument
from ._native import FIXED_KEYS, KEYWORDS, Native, is_dense, mask_of, masks_in
from ._options import rate_of
from ._parameters import Place

Groups = list[dict[str, Any]]

# Keys of a group that may change.
_NUMBERS = ("lr", "weight_decay")

# Tolerance relative to the larger term of a sum. Smaller differences come from a
# different order of rounding.
_ROUNDING = 2.0**-20


class Edits:
    """Copies written values into other memory from which a later step would restore the
    old values. This memory holds masters of 16-bit parameters and, after local steps of
    0/1 Adam or an outer loop, the parameters of the last exchange. With
    compressed_under_next_step, the memory also holds the common parameters of 1-bit
    Adam.
    """

    def __init__(self, comm: _core.Communicator, native: Native) -> None:
        self._comm, self._native = comm, native
        config, memory = native.config, native.memory
        self._marks = memory.marks() if undoes_edits(config) else None
        self._moved = False
        self._was_loaded = False
        is_lean = config.optimizer_name() == "lean_onebit_adam"
        has_masters = memory.params.dtype != torch.float32
        # Without copies, only checksums detect writes.
        self._keeps_no_array = is_lean or (
            not has_masters
            and (config.sync_every > 0 or config.comm.compressed_under_next_step)
        )

    def make_writable(self) -> None:
        """Calls FlatMemory.make_writable(). If the call reads parameters, apply()
        compares these parameters. Local.
        """
        self._moved |= self._native.memory.make_writable()

    def read_parameters(self) -> None:
        """Does the same as make_writable() with FlatMemory.read_parameters(). Local."""
        self._moved |= self._native.memory.read_parameters()

    def remember(self) -> None:
        """Notes that parameters have the values that the optimizer knows. Local."""
        self._moved = self._was_loaded = False
        if self._marks is not None:
            self._marks.remember()

    def loaded(self) -> None:
        """Does the same as remember() after a load of a state without its parameters.
        The program may load the parameters before or after the state. Local.
        """
        self.remember()
        self._was_loaded = True

    @torch.no_grad()
    def apply(self, *, is_collective: bool) -> None:
        """Copies values that were written since remember(). Local, unless parameters
        differ between ranks and this rank finds written values. In that case all ranks
        must have written, and `is_collective` must be true.

        Raises FailedPrecondition if parameters differ between ranks, between two
        exchanges, and would continue to differ.
        """
        self._native.memory.read_written()
        if self._marks is None or not (self._moved or self._marks.have_changed()):
            return
        if self._keeps_no_array:
            if self._marks.have_changed():
                memory = self._native.memory
                values = memory.values()
                if not self._are_of_the_state(values):
                    self._require_equal(values, is_collective)
                    self._native.optimizer.read_written(memory.handed_params)
        elif (kept := self._kept()) is not None:
            self._apply(*kept, is_collective)
        self.remember()

    def _apply(
        self, values: torch.Tensor, slack: torch.Tensor | float, is_collective: bool
    ) -> None:
        memory = self._native.memory
        now = memory.values()
        differs = (memory.rounded(values) - now).abs() > slack
        differs |= values.isnan() != now.isnan()
        if not bool(differs.any()):
            return
        if self._require_equal(now, is_collective):
            values = now
        else:
            values = torch.where(differs, now, values)
        self._native.optimizer.read_masters(values)

    def _require_equal(self, values: torch.Tensor, is_collective: bool) -> bool:
        """Returns whether parameters differed between ranks before the write. If they
        did, raises an error unless all ranks have the same values now. Collective if
        `is_collective`.
        """
        if not self._native.optimizer.steps_behind or self._comm.size == 1:
            return False
        if is_collective:
            on_cpu = values.cpu()
            content = (ctypes.c_char * on_cpu.nbytes).from_address(on_cpu.data_ptr())
            digest = hashlib.sha256(content).hexdigest()
            try:
                with in_part("and compares parameters that its program has written"):
                    texts = gathered(self._comm, f"parameters were written: {digest}")
            except CommFailure as error:
                raise CommFailure(
                    f"{error} (the program has written into parameters of this rank, and "
                    "all ranks must write the same)"
                ) from None
            if len(set(texts)) == 1:
                return True
        raise FailedPrecondition(
            "parameters were written while they differ from rank to rank, between two "
            "exchanges: write the same values into all of them on all ranks, or call "
            "optimizer.synchronize() before and write then"
        )

    def _are_of_the_state(self, values: torch.Tensor) -> bool:
        """Returns whether `values` are this rank's parameters in the loaded state."""
        if not self._was_loaded:
            return False
        own = tensors(self._native.optimizer.state_dict()).get("local_params")
        return own is not None and torch.equal(own, values)

    def _kept(self) -> tuple[torch.Tensor, torch.Tensor | float] | None:
        """Returns the optimizer's copy of the parameters, flat in fp32, and a bound on
        its rounding error. Returns None if the optimizer has no copy.
        """
        masters = self._native.optimizer.masters()
        if masters is not None:
            return from_dlpack(masters), 0.0
        state = tensors(self._native.optimizer.state_dict())
        if "accumulated" not in state or "origin" not in state:
            return None
        memory = self._native.memory
        values, slack = torch.zeros_like(memory.params), torch.zeros_like(memory.params)
        origins = self._native.memory.views(state["origin"])
        moved = state["accumulated"] and state["local_steps_taken"]
        for k, (value, bound, origin) in enumerate(
            zip(memory.views(values), memory.views(slack), origins, strict=True)
        ):
            value.copy_(origin)
            bound.copy_(origin.abs())
            if moved:
                group = self._native.places[k].group
                value.mul_(float(state["decay_taken"][group]))
                own = self._native.memory.views(state["momentum_accumulator"])[k]
                value.add_(own)
                bound.add_(own.abs())
        return values, slack * _ROUNDING


class Settings:
    """Passes changes of param_groups to the optimizer. Learning rates, weight decays
    and masks take effect in the next step, and nothing else may change.
    """

    def __init__(self, groups: Groups) -> None:
        self._fixed = [
            {key: group[key] for key in FIXED_KEYS if key in group} for group in groups
        ]
        self._numbers = {
            key: [float(group[key]) for group in groups] for key in _NUMBERS
        }
        self._masks = [_kept(group) for group in groups]
        self._sizes = sizes_of(groups)

    def fixed(self, index: int) -> Mapping[str, Any]:
        return self._fixed[index]

    def told(self, rates: list[float]) -> None:
        """Records the learning rates that the optimizer took from a restored state."""
        self._numbers["lr"] = rates

    def apply(self, groups: Groups, native: Native) -> None:
        """Passes changed numbers to the optimizer. Local.

        Raises FailedPrecondition naming a key that cannot change, and InvalidArgument
        or TypeError for an invalid number.
        """
        self.require_same_groups(groups)
        for index, group in enumerate(groups):
            self.require_fixed(index, group)
        self._apply("lr", groups, native.optimizer.set_learning_rate)
        self.apply_decays(groups, native.optimizer)

    def apply_decays(self, groups: Groups, optimizer: Any) -> None:
        """Passes changed weight decays to a native optimizer or engine. Local. Raises
        like apply().
        """
        self._apply("weight_decay", groups, optimizer.set_weight_decay)

    def _apply(
        self, key: str, groups: Groups, tell: Callable[[int, float], None]
    ) -> None:
        for index, group in enumerate(groups):
            number = number_in(index, group, key)
            if number != self._numbers[key][index]:
                tell(index, number)
                self._numbers[key][index] = number

    def apply_masks(
        self,
        groups: Groups,
        optimizer: Any,
        places: list[Place],
        unlike: Callable[[int], torch.Tensor] | None = None,
    ) -> Exception | None:
        """Passes changed masks to a native optimizer or engine. Local. If ranks compare
        masks in the next step, `unlike` makes a mask that differs from the masks of all
        other ranks. This mask replaces an invalid one, so that the step fails on all
        ranks, and the invalid mask's error is returned.

        Without `unlike`, raises InvalidArgument or TypeError for an invalid mask.
        """
        refusal = None
        for index, group in enumerate(groups):
            if not self.has_other_mask(index, group):
                continue
            kept: list[Any] = [object()]  # the next step passes its mask on
            try:
                mask = mask_of(index, group, places)
                kept = _kept(group)
            except (InvalidArgument, TypeError) as error:
                mask = torch.zeros(0) if unlike is None else unlike(index)
                if not mask.numel():
                    raise
                refusal = refusal or error
            optimizer.set_exp_avg_mask(index, mask)
            self._masks[index] = kept
        return refusal

    def has_other_mask(self, index: int, group: Mapping[str, Any]) -> bool:
        """Returns whether values of masks have changed, by assignment or in place."""
        before, now = self._masks[index], masks_in(group)
        return len(before) != len(now) or not all(map(_has_values, now, before))

    def require_same_groups(self, groups: Groups) -> None:
        require_sizes(self._sizes, groups)

    def require_fixed(self, index: int, group: Mapping[str, Any]) -> None:
        """Raises FailedPrecondition unless fixed keys in `group` have their initial
        values.
        """
        for key, value in self._fixed[index].items():
            if key not in group or not same(group[key], value):
                raise FailedPrecondition(
                    f"param_groups[{index}]['{key}'] was {_short(value)} when the "
                    f"optimizer was made and is {_short(group.get(key))} now, but "
                    f"cannot change{_CURES.get(key, '')}"
                )
        for key in sorted(KEYWORDS & group.keys()):
            raise FailedPrecondition(
                f"param_groups[{index}]['{key}'] was absent when the optimizer was made "
                f"and is {_short(group[key])} now, but cannot change: '{key}' is a "
                "keyword of the constructor"
            )


_CURES = {
    "betas": ": OneCycleLR and CyclicLR cycle it unless they are made with "
    "cycle_momentum=False"
}


def sizes_of(groups: Groups) -> list[int]:
    return [len(group["params"]) for group in groups]


def require_sizes(sizes: list[int], groups: Groups) -> None:
    """Raises FailedPrecondition unless the groups have `sizes` parameters."""
    if len(groups) != len(sizes):
        raise FailedPrecondition(
            f"param_groups: there were {len(sizes)} groups when the optimizer was made and "
            f"there are {len(groups)} now; add_param_group() adds one before the first step"
        )
    for index, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        now = len(group.get("params", ()))
        if now != size:
            raise FailedPrecondition(
                f"param_groups[{index}]['params']: there were {size} parameters when the "
                f"optimizer was made and there are {now} now; make another optimizer"
            )


def _kept(group: Mapping[str, Any]) -> list[Any]:
    return [
        mask.detach().to(torch.bool, copy=True) if is_dense(mask) else mask
        for mask in masks_in(group)
    ]


def _has_values(mask: Any, kept: Any) -> bool:
    if not is_dense(mask) or not is_dense(kept):
        return mask is kept
    is_alike = mask.shape == kept.shape and mask.device == kept.device
    return is_alike and bool((mask == kept).all())


def set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def number_in(index: int, group: Mapping[str, Any], key: str) -> float:
    """Returns the learning rate or decay of a group.

    Raises FailedPrecondition if it is missing, and the errors of rate_of().
    """
    what = f"param_groups[{index}]['{key}']"
    if key not in group:
        raise FailedPrecondition(
            f"{what} was removed after the optimizer was made: put it back"
        )
    return rate_of(what, group[key])


def same(a: Any, b: Any) -> bool:
    """Returns whether two values are equal. Tuples, lists and tensors are compared by content."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a is b or torch.equal(a, b)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    try:
        return bool(a == b)
    except (RuntimeError, TypeError, ValueError):  # an array and a number
        return False


def _short(value: Any) -> str:
    return "another tensor" if isinstance(value, torch.Tensor) else repr(value)[:60]


def may_be_behind(config: _core.Config, phase: str) -> bool:
    """Returns whether parameters may differ between ranks by local steps after a load."""
    return _has_local_steps(config) and phase != "exact"


def undoes_edits(config: _core.Config) -> bool:
    """Returns whether steps compute parameters from other memory: from masters or, if
    parameters differ between exchanges, from the parameters of the last exchange.
    """
    return (
        config.precision.dtype != _core.DType.float32
        or config.zero.stage > 0
        or _has_local_steps(config)
    )


def _has_local_steps(config: _core.Config) -> bool:
    return (
        config.optimizer_name() == "zero_one_adam"
        or config.sync_every > 0
        or config.comm.compressed_under_next_step
    )

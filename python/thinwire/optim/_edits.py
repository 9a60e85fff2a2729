# SPDX-License-Identifier: Apache-2.0
"""Values that the program writes into parameters that the optimizer has copied."""

from __future__ import annotations

import ctypes
import hashlib

import torch
from torch.utils.dlpack import from_dlpack

from .. import _core
from .._agreement import gathered
from .._memory import tensors
from ..comm.calls import in_part
from ..errors import CommFailure, FailedPrecondition
from ._native import Native

# Tolerance relative to the larger part of a sum. Smaller differences come from a
# different order of rounding.
_ROUNDING = 2.0**-20


class Edits:
    """Copies written values to other memory from which a later step would restore the
    old ones. These are masters of 16-bit parameters and, after local steps of 0/1 Adam
    or an outer loop, the parameters of the last exchange. With
    compressed_under_next_step they include the common parameters of 1-bit Adam.
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
            and (config.outer.sync_every > 0 or config.comm.compressed_under_next_step)
        )

    def make_writable(self) -> None:
        """Calls FlatMemory.make_writable(). If that has read parameters, apply()
        compares them. Local.
        """
        self._moved |= self._native.memory.make_writable()

    def read_parameters(self) -> None:
        """Like make_writable(), but calls FlatMemory.read_parameters(). Local."""
        self._moved |= self._native.memory.read_parameters()

    def remember(self) -> None:
        """Notes that parameters have the values that the optimizer knows. Local."""
        self._moved = self._was_loaded = False
        if self._marks is not None:
            self._marks.remember()

    def loaded(self) -> None:
        """Like remember(), after loading a state without its parameters. The program
        may load these before or after the state. Local.
        """
        self.remember()
        self._was_loaded = True

    @torch.no_grad()
    def apply(self, *, is_collective: bool) -> None:
        """Copies values that were written since remember(). Local, unless parameters
        differ between ranks and this rank finds written values. Then all ranks must
        have written, and `is_collective` must be true.

        Raises FailedPrecondition if ranks differ between exchanges and would continue to
        differ.
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
        """Returns whether ranks differed before. If they did, raises an error unless
        they have the same values now. This is collective if `is_collective`.
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
        """Returns whether the values are those of the loaded state for this rank."""
        if not self._was_loaded:
            return False
        own = tensors(self._native.optimizer.state_dict()).get("local_params")
        return own is not None and torch.equal(own, values)

    def _kept(self) -> tuple[torch.Tensor, torch.Tensor | float] | None:
        """Returns the optimizer's copy of the parameters, flat in fp32, and the bound
        of its rounding. Returns None if the optimizer has no copy.
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


def may_be_behind(config: _core.Config, phase: str) -> bool:
    """Returns whether ranks may differ by local steps after a load."""
    return _has_local_steps(config) and phase != "exact"


def undoes_edits(config: _core.Config) -> bool:
    """Returns whether parameters are computed from other memory: from masters, or from
    parameters of the last exchange if ranks differ between exchanges.
    """
    return (
        config.precision.dtype != _core.DType.float32
        or config.zero.stage > 0
        or _has_local_steps(config)
    )


def _has_local_steps(config: _core.Config) -> bool:
    return (
        config.optimizer_name() == "zero_one_adam"
        or config.outer.sync_every > 0
        or config.comm.compressed_under_next_step
    )

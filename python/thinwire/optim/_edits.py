# SPDX-License-Identifier: Apache-2.0
"""Values that the program writes into parameters of which the optimizer has copies."""

from __future__ import annotations

import ctypes
import hashlib

import torch
from torch.utils.dlpack import from_dlpack

from .. import _core
from ..errors import FailedPrecondition
from ._native import Native


class Edits:
    """Takes in external writes, which a later step would otherwise undo."""

    def __init__(self, comm: _core.Communicator, native: Native) -> None:
        self._comm, self._native = comm, native
        self._marks = native.memory.marks() if undoes_edits(native.config) else None

    def note(self) -> None:
        if self._marks is not None:
            self._marks.remember()

    @torch.no_grad()
    def take_in(self, *, is_collective: bool) -> None:
        """Copies what was written. Collective only if ranks differed before."""
        memory, optimizer = self._native.memory, self._native.optimizer
        memory.take_in_written()
        if self._marks is None or not self._marks.have_changed():
            return
        now = memory.values()
        have_differed = self._require_equal(now, is_collective)
        masters = optimizer.masters()
        if masters is None:
            optimizer.read_masters(memory.handed_params)
        elif have_differed:
            optimizer.read_masters(now)
        else:  # masters of what was not written keep their bits
            values = from_dlpack(masters)
            rounded = memory.rounded(values)
            differs = (rounded != now) & ~(rounded.isnan() & now.isnan())
            optimizer.read_masters(torch.where(differs, now, values))
        self.note()

    def _require_equal(self, values: torch.Tensor, is_collective: bool) -> bool:
        """Returns whether ranks differed; then raises unless they are equal now."""
        if not self._native.optimizer.steps_behind or self._comm.size == 1:
            return False
        if is_collective:
            on_cpu = values.cpu()
            content = (ctypes.c_char * on_cpu.nbytes).from_address(on_cpu.data_ptr())
            digest = hashlib.sha256(content).hexdigest()
            texts = self._comm.gather_texts(f"parameters were written: {digest}")
            if len(set(texts)) == 1:
                return True
        raise FailedPrecondition(
            "parameters were written while they differ from rank to rank, between two "
            "exchanges: write the same values into all of them on all ranks, or call "
            "optimizer.synchronize() before and write then"
        )


def may_be_behind(config: _core.Config, phase: str) -> bool:
    """Returns whether ranks may differ, by local steps, after an optimizer was loaded."""
    return _has_local_steps(config) and phase != "exact"


def undoes_edits(config: _core.Config) -> bool:
    """Returns whether steps compute parameters from other memory."""
    return (
        config.precision.dtype != _core.DType.float32
        or config.zero.stage > 0
        or _has_local_steps(config)
    )


def _has_local_steps(config: _core.Config) -> bool:
    return (
        isinstance(config.optimizer, _core.ZeroOneAdamOptions)
        or config.outer.sync_every > 0
    )

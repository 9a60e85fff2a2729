# SPDX-License-Identifier: Apache-2.0
"""Tensors beside those that a native engine trains, as its checkpoints have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from core_cases import (
    Trained,
    config,
    scratch,
)
from thinwire import _core, errors
from thinwire.comm import run_local_ranks

pytestmark = pytest.mark.quick


def test_others_that_raise_stop_all_ranks(tmp_path: Path) -> None:
    def save(comm: _core.Communicator) -> str:
        trained = Trained(comm, config())

        def others() -> Any:
            if comm.rank == 1:
                raise KeyError("mine")
            return _core.Others()

        trained.engine.set_others(others)
        kind = KeyError if comm.rank == 1 else errors.FailedPrecondition
        with pytest.raises(kind) as raised:
            trained.engine.save(str(tmp_path), None, scratch())
        trained.engine.set_others(lambda: 3)
        with pytest.raises(
            errors.InvalidArgument, match="others must return an Others"
        ):
            trained.engine.save(str(tmp_path), None, scratch())
        trained.engine.set_others(None)
        trained.engine.save(str(tmp_path), None, scratch())
        return str(raised.value)

    assert run_local_ranks(2, save) == ["rank 1 gave up: KeyError: 'mine'", "'mine'"]


def test_wrong_others_are_refused() -> None:
    with pytest.raises(
        errors.InvalidArgument, match="'x' must have as many values as its shape, 6"
    ):
        _core.Others([("x", (2, 3), torch.zeros(5), False)])
    with pytest.raises(TypeError, match="tensors: 'x' must be a writable array"):
        _core.Others([("x", (2, 3), torch.zeros(2, 3), False)])
    with pytest.raises(TypeError, match="others must be callable or None"):
        Trained(_core.local_group(1)[0], config()).engine.set_others(3)

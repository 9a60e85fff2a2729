# SPDX-License-Identifier: Apache-2.0
"""The same classes over torch operations: same bits, states that come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optim_cases as cases
import pytest
import thinwire
import torch
from thinwire import _core
from thinwire.comm import run_local_ranks
from thinwire.errors import Unavailable

pytestmark = pytest.mark.quick


def run(kind: str, dtype: torch.dtype, is_native: bool) -> list[Any]:
    """Bits of a run with a stop in the middle, on each of two ranks."""

    def body(communicator: Any) -> tuple[str, str]:
        net = cases.model(dtype=dtype)
        optimizer = cases.make(kind, net.parameters(), communicator)
        assert isinstance(optimizer._made.optimizer, _core.Optimizer) == is_native
        cases.train(net, optimizer, range(7), communicator.rank)
        state = optimizer.state_dict()
        assert state["state"][0]["exp_avg"].shape == (33, 7)

        resumed = cases.model(seed=1, dtype=dtype)
        other = cases.make(kind, resumed.parameters(), communicator)
        resumed.load_state_dict(net.state_dict())
        other.load_state_dict(state)
        for trained, its in ((net, optimizer), (resumed, other)):
            cases.train(trained, its, range(7, 14), communicator.rank)
            its.synchronize()
        return cases.bits(net), cases.bits(resumed)

    return run_local_ranks(2, body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", cases.KINDS)
def test_both_paths_have_the_same_bits(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = run(kind, dtype, is_native=True)
    monkeypatch.setenv("THINWIRE_DEVICE_PATH", "torch")
    assert run(kind, dtype, is_native=False) == native
    assert len({bits for pair in native for bits in pair}) == 1


def test_what_belongs_to_the_cpu_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("THINWIRE_DEVICE_PATH", "torch")
    optimizer = cases.make("OnebitAdam", cases.model().parameters())
    with pytest.raises(Unavailable, match="other devices than the CPU"):
        thinwire.save(tmp_path, optimizer)
    assert not any(tmp_path.iterdir())

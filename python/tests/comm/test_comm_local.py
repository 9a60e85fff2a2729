# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads: who is named when one returns early, and what seeds mean to them."""

from __future__ import annotations

import time
from typing import Any

import optim_cases as cases
import pytest
import thinwire
import torch
from thinwire import CommFailure
from thinwire.comm import run_local_ranks


@pytest.mark.quick
def test_a_rank_that_returns_early_is_named_at_once() -> None:
    """Its optimizer lives on in the results, as in a program that collects them."""

    def body(communicator: Any) -> Any:
        net, optimizer = cases.made("OnebitAdam", communicator)
        cases.train(net, optimizer, range(6 - communicator.rank), communicator.rank)
        return optimizer

    with pytest.raises(CommFailure, match="rank 1 gave up: its function has returned"):
        run_local_ranks(2, body)


@pytest.mark.quick
def test_ranks_that_return_one_after_the_other_are_no_failure() -> None:
    def body(communicator: Any) -> int:
        communicator.barrier()
        time.sleep(0.05 * communicator.rank)
        return int(communicator.rank)

    assert run_local_ranks(4, body) == [0, 1, 2, 3]


@pytest.mark.quick
def test_models_seeded_in_threads_are_the_same_every_time() -> None:
    def body(communicator: Any) -> list[torch.Tensor]:
        communicator.barrier()  # all of them at once
        with thinwire.seeded(3):
            layers = []
            for _ in range(5):
                layers.append(torch.randn(4000))
                time.sleep(0.001)  # another thread would come in here
        return layers

    random = torch.Generator().manual_seed(3)
    expected = [torch.randn(4000, generator=random) for _ in range(5)]
    before = torch.get_rng_state()
    for layers in run_local_ranks(4, body):
        assert all(map(torch.equal, layers, expected))
    assert torch.equal(torch.get_rng_state(), before)

# SPDX-License-Identifier: Apache-2.0
"""The native module on arrays of Python's own, on any Python that has no torch."""

import struct
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from thinwire import _core

pytestmark = pytest.mark.quick

SIZE = 1025 + 33


def on_ranks(work: Callable[[_core.Communicator], bytes], size: int) -> list[bytes]:
    """Returns the results of `work` on all ranks, which are threads."""
    group = _core.local_group(size, timeout=20.0)
    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(work, group))
    for member in group:
        member.close()
    return results


def onebit_adam(steps: int, sent: list[int]) -> Callable[[_core.Communicator], bytes]:
    """Parameters after `steps`, of which two are exact; `sent`: bytes of the last."""

    def work(comm: _core.Communicator) -> bytes:
        config = _core.Config()
        config.set_optimizer("OnebitAdam", '{"lr": 0.01, "freeze_step": 2}')
        layout = _core.Layout([("a", [1025], 0), ("b", [3, 11], 0)])
        params = array("f", [1.0] * SIZE)
        optimizer = _core.Optimizer(comm, layout, config, params)
        for step in range(steps):
            sign = 1.0 if step % 2 == comm.rank % 2 else -0.5
            grads = array("f", [sign * (i % 7 - 2.5) for i in range(SIZE)])
            report = optimizer.step(params, grads)
            assert report.applied
        assert report.phase == "compressed"
        sent[comm.rank] = report.bytes_sent
        optimizer.close()
        return params.tobytes()

    return work


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_have_the_same_parameters_after_compressed_steps(size: int) -> None:
    sent = [0] * size
    results = on_ranks(onebit_adam(6, sent), size)
    assert results == [results[0]] * size
    assert all(value != 1.0 for (value,) in struct.iter_unpack("f", results[0]))
    # A bit per element, and a scale per block: a sixteenth of one exact exchange.
    assert all((count > 0) == (size > 1) for count in sent)
    assert max(sent) < SIZE * 4 / 8

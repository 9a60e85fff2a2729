# SPDX-License-Identifier: Apache-2.0
"""Arrays cross without a copy, from torch and from plain Python."""

from __future__ import annotations

import array
import gc

import pytest
import torch
from core_cases import config, layout
from thinwire import _core

pytestmark = pytest.mark.quick


@pytest.fixture
def alone() -> _core.Communicator:
    return _core.local_group(1)[0]


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int32,
        torch.int64,
        torch.uint8,
    ],
)
@pytest.mark.parametrize("size", [0, 1, 7, 33, 1025])
def test_tensors_are_read_and_written_in_place(
    alone: _core.Communicator, dtype: torch.dtype, size: int
) -> None:
    values = torch.arange(size).to(dtype)
    output = torch.zeros(size, dtype=dtype)
    alone.all_gather(values, output)  # in a group of one it copies
    assert torch.equal(output, values)


@pytest.mark.parametrize("code", ["f", "d", "i", "q", "B"])
def test_buffers_without_dlpack(alone: _core.Communicator, code: str) -> None:
    values = array.array(code, [1, 2, 3])
    output = array.array(code, [0, 0, 0])
    alone.all_gather(values, memoryview(output))
    assert output == values
    alone.all_gather(memoryview(values).toreadonly(), output)


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(2, 2),
        torch.zeros(8)[::2],
        torch.zeros(3, dtype=torch.complex64),
        torch.zeros(3, dtype=torch.bool),
        torch.zeros(3, device="meta"),
        torch.zeros(()),
        [1.0, 2.0],
        b"abc",
        memoryview(b"abc"),
    ],
    ids=repr,
)
def test_others_are_refused_by_name(alone: _core.Communicator, wrong: object) -> None:
    with pytest.raises(
        TypeError, match=r"^values must be a writable array on the CPU.* got "
    ):
        alone.all_reduce(wrong)


def test_a_read_only_array_may_be_read(alone: _core.Communicator) -> None:
    output = torch.zeros(3, dtype=torch.uint8)
    alone.all_gather(b"abc", output)
    assert bytes(output.tolist()) == b"abc"
    with pytest.raises(TypeError, match="^output must be a writable array"):
        alone.all_gather(output, b"abc")


def test_results_own_their_memory(alone: _core.Communicator) -> None:
    parameters = torch.randn(layout().size).bfloat16()
    optimizer = _core.Optimizer(
        alone, layout(), config(dtype=torch.bfloat16), parameters, parameters.float()
    )
    state = optimizer.state_dict()
    masters = optimizer.masters()
    moment, values = torch.from_dlpack(state["exp_avg"]), torch.from_dlpack(masters)
    address = moment.data_ptr()
    assert (
        torch.from_dlpack(state["exp_avg"]).data_ptr() == address
    )  # no copy on the way
    assert memoryview(masters).nbytes == 4 * parameters.numel()
    before = values.clone()
    optimizer.close()
    del state, masters, optimizer
    gc.collect()
    moment.fill_(1)
    assert moment.data_ptr() == address
    assert torch.equal(values, before)
    assert torch.equal(values.bfloat16(), parameters)


def test_checksum_is_of_the_bytes() -> None:
    values = torch.arange(33, dtype=torch.float32)
    assert _core.checksum(values) == _core.checksum(array.array("f", range(33)))
    assert _core.checksum(values) != _core.checksum(values + 1)

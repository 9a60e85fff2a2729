# SPDX-License-Identifier: Apache-2.0
"""Arrays cross without a copy, from torch and from plain Python."""

from __future__ import annotations

import array
import copy
import gc
import json
import re
from pathlib import Path

import pytest
import torch
from native import config, layout
from thinwire import _core
from thinwire.errors import InvalidArgument

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


HEADERS = Path(__file__).resolve().parents[3] / "include/thinwire"
OPTIONS = "checkpoint/options.h"
# `what` is weights_only in Python; no program of Python is told the progress of a save,
# or gives each host a directory.
LEFT_OUT = {"what", "progress", "storage"}
FIELD = re.compile(r"^  [\w:<>, ]+ (\w+)(?: = [^;]+|\{[^;]*\});", re.MULTILINE)


def fields(header: str, name: str) -> set[str]:
    """Names of the fields that the header has, as Python has them."""
    text = (HEADERS / header).read_text()
    body = re.search(
        rf"^struct {name}\b[^;]*? \{{\n(.*?)^\}};", text, re.MULTILINE | re.DOTALL
    )
    assert body is not None, name
    return set(FIELD.findall(body[1])) - LEFT_OUT


@pytest.mark.parametrize("name", ["SaveOptions", "LoadOptions"])
def test_fields_are_those_of_the_header(name: str) -> None:
    made = getattr(_core, name)()
    known = fields(OPTIONS, name)
    assert known
    for field in known:
        setattr(made, field, getattr(made, field))
    own = {
        field
        for field in vars(type(made))
        if not field.startswith("_") and not callable(getattr(made, field))
    }
    assert own - {"weights_only"} == known
    with pytest.raises(AttributeError):
        made.no_such_field = 1


def test_structs_are_references_into_the_configuration() -> None:
    config = _core.Config()
    precision, scale = config.precision, config.precision.loss_scale
    precision.dtype = _core.DType.float16
    scale.initial_scale = 2.0
    assert config.precision.dtype == _core.DType.float16
    assert config.precision.loss_scale.initial_scale == 2
    del config
    assert precision.loss_scale.initial_scale == 2


def test_copies_are_independent() -> None:
    config = _core.Config()
    for made in (copy.copy(config), copy.deepcopy(config)):
        made.set_optimizer("OnebitLamb", '{"lr": 0.5}')
        made.zero.stage = 2
        assert made.optimizer_name() == "onebit_lamb"
        assert config.optimizer_name() == "adam"
        assert config.keywords()["lr"] == 1e-3
        assert config.zero.stage == 0


def test_keywords_are_read_and_shown() -> None:
    config = _core.Config()
    given = {"freeze_step": "auto", "residual_dtype": "bf16", "betas": [0.5, 0.25]}
    passed = {**given, "threads": 2, "lr": None}
    config.set_optimizer("OnebitAdam", json.dumps(passed))
    shown = config.keywords()
    assert shown | given | {"betas": (0.5, 0.25)} == shown
    assert (shown["threads"], shown["lr"], shown["total_steps"]) == (2, 1e-3, None)
    assert config.comm.num_threads == 2
    before = config.describe()
    with pytest.raises(InvalidArgument, match="freeze_step must be an integer >= 1"):
        config.set_optimizer("OnebitLamb", '{"threads": 3, "freeze_step": 0}')
    assert config.describe() == before


def test_groups_and_masks() -> None:
    config = _core.Config()
    config.set_optimizer("OnebitAdam")
    texts = set()
    for mask in (
        torch.tensor([1.0, 0.0, 1.0]),
        torch.tensor([True, False, True]),
        bytes([1, 0, 1]),
        [1, 0, 1],
    ):
        config.set_groups(['{"lr": 0.5}', '{"non_freeze": true}'], [mask, None])
        texts.add(config.describe_groups())
    assert len(texts) == 1
    with pytest.raises(
        TypeError, match="exp_avg_mask must be of float32, uint8 or bool, got int64"
    ):
        config.set_groups(["{}"], [torch.zeros(3, dtype=torch.int64)])
    with pytest.raises(InvalidArgument, match=r"\[1\]\['max_coeff'\]: this optimizer"):
        config.set_groups(["{}", '{"max_coeff": 3.0}'])
    assert config.describe_groups() in texts


def test_files_are_read_with_notes(tmp_path: Path) -> None:
    config, notes = _core.Config.from_json(
        '{"train_batch_size": 8, "dump_state": true}'
    )
    assert config.batch(2) == (8, 4, 1)
    (note,) = (note for note in notes if note.path == "dump_state")
    assert str(note).startswith("dump_state: ignored (no effect)")
    (tmp_path / "config.json").write_text(config.to_json())
    again, _ = _core.Config.from_file(str(tmp_path / "config.json"))
    assert again.to_json() == config.to_json()

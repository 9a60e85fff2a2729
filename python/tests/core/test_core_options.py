# SPDX-License-Identifier: Apache-2.0
"""Every field of the C++ options is there, and has an effect."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from thinwire import _core

pytestmark = pytest.mark.quick

HEADERS = Path(__file__).resolve().parents[3] / "include/thinwire"
STRUCTS = {
    "optim/adam.h": ["AdamGroup", "AdamOptions"],
    "optim/lamb.h": ["LambGroup", "LambOptions"],
    "optim/low_bit_optimizer.h": ["MaskedGroup"],
    "optim/onebit_adam.h": ["OnebitAdamGroup", "OnebitAdamOptions"],
    "optim/onebit_lamb.h": ["OnebitLambGroup", "OnebitLambOptions"],
    "optim/zero_one_adam.h": ["ZeroOneAdamOptions"],
    "lean/lean_onebit_adam.h": ["LeanOnebitAdamOptions"],
    "checkpoint/options.h": ["SaveOptions", "LoadOptions"],
}
# `what` is weights_only in Python; Config has fields for what is in `exchange`; no
# program of Python is told the progress of a save, or gives each host a directory.
LEFT_OUT = {"exchange", "what", "progress", "storage"}
# Structs of C++ whose fields are the options' own in Python, some by another name.
PARTS = {
    "freeze": ("optim/freeze_options.h", "FreezeOptions"),
    "compression": ("optim/compression_options.h", "CompressionOptions"),
}
OWN_NAMES = {
    "step": "freeze_step",
    "min_step": "min_freeze_step",
    "max_step": "max_freeze_step",
    "ratio": "freeze_ratio",
}
ALL = [(header, name) for header, names in STRUCTS.items() for name in names]
FIELD = re.compile(r"^  [\w:<>, ]+ (\w+)(?: = [^;]+|\{[^;]*\});", re.MULTILINE)


def fields(header: str, name: str) -> set[str]:
    """Names of the fields that the header has, as Python has them."""
    text = (HEADERS / header).read_text()
    body = re.search(
        rf"^struct {name}\b[^;]*? \{{\n(.*?)^\}};", text, re.MULTILINE | re.DOTALL
    )
    assert body is not None, name
    found = set(FIELD.findall(body[1]))
    for part, place in PARTS.items():
        if part in found:
            found.remove(part)
            found |= {OWN_NAMES.get(field, field) for field in fields(*place)}
    return found - LEFT_OUT


@pytest.mark.parametrize(("header", "name"), ALL)
def test_fields_are_those_of_the_header(header: str, name: str) -> None:
    made = getattr(_core, name)()
    known = fields(header, name)
    assert known
    for field in known:
        setattr(made, field, getattr(made, field))
    inherited = {f for base in type(made).__mro__[1:-1] for f in vars(base)}
    own = {
        field
        for field in vars(type(made))
        if not field.startswith("_") and not callable(getattr(made, field))
    }
    assert own - {"weights_only"} - inherited == known
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


def test_a_replaced_optimizer_lives_on() -> None:
    config = _core.Config()
    first = config.optimizer
    config.optimizer = _core.OnebitLambOptions()
    first.learning_rate = 0.5
    config.optimizer.learning_rate = 0.25
    assert (first.learning_rate, config.optimizer.learning_rate) == (0.5, 0.25)
    assert config.optimizer_name() == "onebit_lamb"


def test_copies_are_independent() -> None:
    config = _core.Config()
    for made in (copy.copy(config), copy.deepcopy(config)):
        made.optimizer.learning_rate = 0.5
        made.zero.stage = 2
        assert config.optimizer.learning_rate == 1e-3
        assert config.zero.stage == 0
    options = _core.AdamOptions()
    copy.deepcopy(options).beta1 = 0.5
    assert options.beta1 == 0.9


def test_groups_and_masks() -> None:
    group = _core.OnebitAdamGroup()
    assert (group.learning_rate, group.non_freeze, group.exp_avg_mask) == (
        None,
        False,
        [],
    )
    for mask in (
        torch.tensor([1.0, 0.0, 1.0]),
        torch.tensor([True, False, True]),
        bytes([1, 0, 1]),
        [1, 0, 1],
    ):
        group.exp_avg_mask = mask
        assert group.exp_avg_mask == [1, 0, 1]
    with pytest.raises(
        TypeError, match="exp_avg_mask must be of float32, uint8 or bool, got int64"
    ):
        group.exp_avg_mask = torch.zeros(3, dtype=torch.int64)
    options = _core.OnebitAdamOptions()
    group.learning_rate = 0.5
    options.groups = [group, _core.OnebitAdamGroup()]
    assert [g.learning_rate for g in options.groups] == [0.5, None]


def test_another_type_of_optimizer_is_refused() -> None:
    config: Any = _core.Config()
    with pytest.raises(TypeError, match="optimizer must be one of AdamOptions"):
        config.optimizer = 3


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

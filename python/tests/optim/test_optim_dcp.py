# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint: no step is counted, exact states go there and back."""

from __future__ import annotations

from typing import Any

import optim_cases as cases
import pytest
import torch
import torch.distributed.checkpoint as dcp
from thinwire.errors import InvalidArgument
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)


@pytest.mark.parametrize("kind", ["AdamW", "OnebitAdam"])
def test_a_state_goes_there_and_back(kind: str, tmp_path: Any) -> None:
    net, optimizer = cases.made(kind)
    stepped: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: stepped.append(1))
    state = get_optimizer_state_dict(net, optimizer)
    assert not stepped and optimizer._made.optimizer.steps == 0
    assert set(state["state"]) == {name for name, _ in net.named_parameters()}

    cases.train(net, optimizer, range(3))
    saved = get_optimizer_state_dict(net, optimizer)
    dcp.save({"optimizer": saved}, checkpoint_id=tmp_path)

    twin, other = cases.made(kind, lr=0.5)
    read = {"optimizer": get_optimizer_state_dict(twin, other)}
    dcp.load(read, checkpoint_id=tmp_path)
    twin.load_state_dict(net.state_dict())
    set_optimizer_state_dict(twin, other, read["optimizer"])
    assert other._made.optimizer.steps == 3 and other.param_groups[0]["lr"] == 1e-2
    mine, theirs = optimizer.state_dict()["state"], other.state_dict()["state"]
    for name in ("exp_avg", "exp_avg_sq"):
        assert all(torch.equal(mine[k][name], theirs[k][name]) for k in mine)
    cases.train(net, optimizer, range(3, 4))
    cases.train(twin, other, range(3, 4))
    assert cases.bits(net) == cases.bits(twin)


def test_the_compressed_stage_is_refused_by_name() -> None:
    net, optimizer = cases.made("OnebitAdam")
    cases.train(net, optimizer, range(6))
    state = get_optimizer_state_dict(net, optimizer)
    other = cases.make("OnebitAdam", net.parameters())
    with pytest.raises(InvalidArgument, match="thinwire.save and thinwire.load"):
        set_optimizer_state_dict(net, other, state)

# SPDX-License-Identifier: Apache-2.0
"""Arguments that initialize() accepts, and those that it refuses, with its texts."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import thinwire
import torch
from engines import (
    BF16,
    ONEBIT,
    Net,
    config_of,
    flat,
    loss_of,
    make,
    same_bits,
    train,
    zero,
)
from local_ranks import by_ranks
from thinwire.comm import run_local_ranks
from thinwire.config import read_config

pytestmark = pytest.mark.quick


IN_ITSELF: dict[str, Any] = {}
IN_ITSELF["a"] = [IN_ITSELF]


class Wrapped(torch.nn.parallel.DistributedDataParallel):
    def __init__(self, module: torch.nn.Module) -> None:
        torch.nn.Module.__init__(self)
        self.module = module


@by_ranks(1)
def test_arguments_that_are_refused(comm: Any, tmp_path: Path) -> None:
    net = Net()
    other = torch.nn.Parameter(torch.zeros(3))
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    strange = torch.optim.lr_scheduler.StepLR(sgd, 1)
    inside = torch.nn.Sequential(Wrapped(Net()))
    refused: dict[str, dict[str, Any]] = {
        "model: it is a DistributedDataParallel": {"model": Wrapped(Net())},
        "model: '0' in it is a DistributedDataParallel": {"model": inside},
        "made of another optimizer": {"lr_scheduler": strange},
        "mesh_param: must be None": {"mesh_param": (1, 2)},
        "model: .* got int": {"model": 3},
        "config: must be a path, a dict or .* got int": {"config": 7},
        "cannot read the file .*no.json": {"config": tmp_path / "no.json"},
        "given once, got config and config_params": {"config_params": {}},
        "lr": {"config": config_of(lr=1)},
        "its values must be JSON's": {"config": {"a": object()}},
        "stage": {"config": config_of(**zero(3))},
        "use thinwire.lean": {"config": config_of(**ONEBIT, **zero(1))},
        r"shape \(3,\) .* none of the model's": {"model_parameters": [other]},
        "got the module itself": {"model_parameters": net},
        "an iterable of parameters": {"model_parameters": net.first.weight},
        "a dict with 'params'": {"model_parameters": [{"lr": 1}]},
        "must be tensors, got list": {"model_parameters": [[1]]},
        "nothing to train": {"model_parameters": []},
        "is no optimizer; give one of thinwire's or": {
            "optimizer": lambda given: given
        },
        "'capturable'": {
            "optimizer": torch.optim.Adam(net.parameters(), capturable=True)
        },
        "train_micro_batch_size_per_gpu": {
            "training_data": list(range(8)),
            "config": {"optimizer": {"type": "Adam"}},
        },
    }

    before = {name: p.data_ptr() for name, p in net.named_parameters()}
    for text, changes in refused.items():
        arguments = {"model": net, "config": config_of(**BF16)} | changes
        with pytest.raises((thinwire.Error, TypeError), match=text):
            thinwire.initialize(**arguments, process_group=comm)
        assert before == {name: p.data_ptr() for name, p in net.named_parameters()}
        assert net.first.weight.dtype == torch.float32
    make(comm, config_of(), model=net).destroy()


@by_ranks(2)
def test_a_buffer_that_one_rank_has_is_refused_on_all(comm: Any) -> None:
    model = Net()
    if comm.rank == 0:
        model.register_buffer("more", torch.zeros(2))
    with pytest.raises(thinwire.InvalidArgument, match="the module's buffers.*more"):
        make(comm, config_of(), model=model)
    train(make(comm, config_of()), range(1))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"model": None}, "model: must be a torch.nn.Module, got None"),
        ({"mpu": object()}, "mpu: must have get_data_parallel_group"),
        ({"config": None}, "config: must be a path"),
        ({"config": config_of(gradient_clipping=-1.0)}, "gradient_clipping"),
        ({"config": IN_ITSELF}, "^(rank 1 .*)?values must be nested at most 32 deep"),
        ({"config": {"train_batch_size": 10**5000}}, "its values must be JSON's"),
        ({"config": "no\0name"}, "cannot read the file"),
        ({"config": "no name \udcff"}, "cannot read the file"),
        ({"lr_scheduler": lambda optimizer: 1 / 0}, "division by zero"),
        ({"lr_scheduler": "StepLR"}, "lr_scheduler: must have step.., .* got str"),
        (
            {"model_parameters": lambda: None},
            "'function' object is not iterable|must be",
        ),
    ],
)
@by_ranks(2)
def test_what_one_rank_is_given_wrongly_all_refuse(
    comm: Any, wrong: dict[str, Any], text: str
) -> None:
    model = Net()
    arguments = {"model": model, "config": config_of(**BF16)}
    if comm.rank == 1:
        arguments |= wrong
    elif "lr_scheduler" in wrong:
        arguments["lr_scheduler"] = lambda optimizer: (
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        )
    with pytest.raises(Exception, match=text) as refusal:
        thinwire.initialize(**arguments, process_group=comm)
    if comm.rank == 0:
        assert isinstance(refusal.value, thinwire.InvalidArgument)
        assert "rank 1 refused its arguments" in str(refusal.value)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    make(comm, config_of()).destroy()


@by_ranks(1)
def test_args_name_the_configuration(comm: Any, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config_of()))
    parser = thinwire.add_config_arguments(argparse.ArgumentParser())
    parser.add_argument("--local_rank", type=int, default=-1)
    args = parser.parse_args(
        ["--deepspeed", "--deepspeed_config", str(path), "--local_rank=3"]
    )
    assert args.deepspeed

    engine, *_ = thinwire.initialize(args, Net(), process_group=comm)
    assert engine.local_rank == 3
    assert engine.train_micro_batch_size_per_gpu() == 4
    for source in (path, str(path), config_of(), read_config(path)[0]):
        again, *_ = thinwire.initialize(model=Net(), config=source, process_group=comm)
        assert again.gradient_clipping() == 1.0


def test_notes_of_keys_are_logged_once_by_rank_0(caplog: Any) -> None:
    caplog.set_level(logging.INFO, "thinwire")
    run_local_ranks(2, lambda comm: make(comm, config_of(dump_state=True)).destroy())
    assert caplog.text.count("dump_state: ignored") == 1


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@by_ranks(1)
def test_torchs_adam_becomes_ours(comm: Any, kind: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "thinwire")

    model, other = Net(seed=2), Net(seed=2)
    settings = {"lr": 0.02, "betas": (0.8, 0.99), "eps": 1e-3, "weight_decay": 0.1}
    torchs = kind(other.parameters(), **settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(torchs, lambda n: 1 / (n + 1))
    engine, optimizer, _, found = thinwire.initialize(
        model=other,
        optimizer=torchs,
        lr_scheduler=schedule,
        config=config_of(gradient_clipping=0.0),
        process_group=comm,
    )
    plain = kind(model.parameters(), **settings)
    rates = torch.optim.lr_scheduler.LambdaLR(plain, lambda n: 1 / (n + 1))
    assert found is schedule and optimizer.param_groups[0] is torchs.param_groups[0]
    for step in range(4):
        plain.zero_grad()
        loss_of(model, 0, step).backward()
        plain.step()
        rates.step()
        engine.backward(loss_of(engine, 0, step))
        engine.step()
        assert engine.get_lr() == rates.get_last_lr()
    difference = (flat(engine.module) - flat(model)).abs().max().item()
    assert difference < 1e-5
    with pytest.raises(thinwire.FailedPrecondition, match="has made steps"):
        make(comm, config_of(), model=model, optimizer=plain)
    assert f"torch's {kind.__name__} becomes Thinwire's" in caplog.text


@by_ranks(2)
def test_ours_and_callables_are_taken_over(comm: Any) -> None:
    engines = []
    for way in range(3):
        model = Net(seed=4)
        ours = lambda p: thinwire.OnebitAdam(
            p, lr=0.01, freeze_step=3, process_group=comm
        )
        given = {
            0: {"config": config_of(**ONEBIT)},
            1: {"config": config_of(), "optimizer": ours(model.parameters())},
            2: {"config": config_of(), "optimizer": ours},
        }[way]
        engine, *_ = thinwire.initialize(model=model, process_group=comm, **given)
        train(engine, range(5))
        assert engine.optimizer_name() == "onebit_adam"
        assert engine.report.phase == "compressed"
        engines.append(flat(engine.module))
    assert same_bits(engines[0], engines[1])
    assert same_bits(engines[0], engines[2])

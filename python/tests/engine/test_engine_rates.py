# SPDX-License-Identifier: Apache-2.0
"""Learning rates, groups, data and the log of an Engine."""

from __future__ import annotations

from typing import Any

import pytest
import thinwire
import torch
from engines import (
    BF16,
    FP16,
    ONEBIT,
    Net,
    alone,
    by_optimizer,
    config_of,
    flat,
    loss_of,
    make,
    optimizer_of,
    same_bits,
    train,
    trained,
    zero,
)
from local_ranks import by_ranks
from thinwire import _log
from thinwire.comm import run_local_ranks


@by_ranks(1)
def test_the_configurations_schedule_is_shown_and_taken(comm: Any) -> None:
    scheduler = {
        "type": "WarmupDecayLR",
        "params": {
            "total_num_steps": 8,
            "warmup_num_steps": 4,
            "warmup_type": "linear",
        },
    }

    engine, optimizer, _, schedule = thinwire.initialize(
        model=Net(), config=config_of(scheduler=scheduler), process_group=comm
    )
    assert isinstance(optimizer, torch.optim.Optimizer)
    for step in range(5):
        shown = schedule.get_last_lr()
        assert shown == engine.get_lr() == [optimizer.param_groups[0]["lr"]]
        train(engine, range(step, step + 1))
        assert engine.report.learning_rate == shown[0]
    with pytest.raises(thinwire.FailedPrecondition, match="remove lr_scheduler.step"):
        schedule.step()
    optimizer.param_groups[0]["lr"] = 0.5
    train(engine, range(5, 7))
    assert engine.report.learning_rate == 0.5
    assert engine.get_lr() == [0.5]


@pytest.mark.parametrize("how", ["schedule", "by hand", "another rate"])
@by_ranks(1)
def test_rates_continue_from_a_state(comm: Any, how: str) -> None:
    warmup = {
        "type": "WarmupLR",
        "params": {"warmup_num_steps": 20, "warmup_type": "linear"},
    }
    config = config_of(**({"scheduler": warmup} if how == "schedule" else {}))
    whole = train(make(comm, config), range(3))
    if how == "by hand":
        whole.optimizer.param_groups[0]["lr"] = 0.03
    if how == "another rate":
        config["optimizer"]["params"]["lr"] = 0.5
    resumed = make(comm, config)
    if how == "by hand":  # gone with the state
        resumed.optimizer.param_groups[0]["lr"] = 0.7
        train(resumed, range(1))
    resumed.module.load_state_dict(whole.module.state_dict())
    resumed.optimizer.load_state_dict(whole.optimizer.state_dict())
    for step in range(3, 7):
        assert resumed.get_lr() == whole.get_lr()
        train(whole, range(step, step + 1))
        train(resumed, range(step, step + 1))
        assert resumed.report.learning_rate == whole.report.learning_rate
    assert same_bits(flat(resumed.module), flat(whole.module))
    state = whole.optimizer.state_dict()
    state["param_groups"] *= 2
    with pytest.raises(thinwire.InvalidArgument, match="2 groups of parameters"):
        resumed.optimizer.load_state_dict(state)


def test_a_scheduler_that_the_script_steps(recwarn: Any) -> None:
    def run(comm: Any) -> None:
        engine = make(comm, config_of())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(engine.optimizer, 0.5)
        for step in range(2):
            train(engine, range(step, step + 1))
            scheduler.step()
        assert engine.get_lr() == [0.0025]

    run_local_ranks(1, run)
    assert not [w for w in recwarn if "lr_scheduler.step()" in str(w.message)]


@pytest.mark.parametrize("told", [True, False])
@by_ranks(1)
def test_a_checkpoint_puts_rates_back(comm: Any, told: bool, tmp_path: Any) -> None:
    engine = trained(comm, 1)
    engine.save_checkpoint(tmp_path)
    engine.optimizer.param_groups[0]["lr"] = 0.5
    if told:
        train(engine, range(1, 2))
    engine.load_checkpoint(tmp_path)
    assert engine.get_lr() == [0.01]
    train(engine, range(1, 2))
    assert engine.report.learning_rate == 0.01


@by_ranks(2)
def test_groups_have_their_own_settings(comm: Any) -> None:
    def groups(model: Net) -> list[dict[str, Any]]:
        decayed = [p for n, p in model.named_parameters() if n.endswith("weight")]
        rest = [p for n, p in model.named_parameters() if not n.endswith("weight")]
        return [
            {"params": decayed, "weight_decay": 0.1},
            {"params": rest, "weight_decay": 0.0, "lr": 0.02},
        ]

    keywords = {
        "lr": 0.01,
        "freeze_step": 3,
        "max_grad_norm": 1.0,
        "process_group": comm,
    }
    plain = by_optimizer(comm, lambda m: thinwire.OnebitAdam(groups(m), **keywords), 6)
    model = Net(seed=comm.rank)
    given = {"model": model, "model_parameters": groups(model)}
    engine = make(comm, config_of(**ONEBIT), **given)
    assert [g["lr"] for g in engine.optimizer.param_groups] == [0.01, 0.02]
    train(engine, range(6))
    assert same_bits(flat(engine.module), plain)


FOLLOWED: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "onebit": (thinwire.OnebitAdam, ONEBIT, {"freeze_step": 3}),
    "adam": (thinwire.AdamW, {}, {}),
    "zero": (thinwire.AdamW, zero(2), {}),
    "onebit bf16": (thinwire.OnebitAdam, ONEBIT | BF16, {"freeze_step": 3}),
}


@pytest.mark.parametrize("name", FOLLOWED)
@pytest.mark.parametrize("world", [1, 2])
@by_ranks("world")
def test_decays_and_masks_that_are_written_while_training_count(
    comm: Any, world: int, name: str
) -> None:
    kind, changes, options = FOLLOWED[name]
    options = {"lr": 0.01, "process_group": comm, "weight_decay": 0.1, **options}
    section = changes.get("optimizer", {"type": "AdamW", "params": {}})
    section = {
        "type": section["type"],
        "params": {**section["params"], "lr": 0.01, "weight_decay": 0.1},
    }
    config = config_of(**{**changes, "optimizer": section, "gradient_clipping": 0.0})
    dtype = torch.bfloat16 if "bf16" in changes else torch.float32
    net, model = Net(seed=0).to(dtype), Net(seed=0).to(dtype)
    optimizer = kind(net.parameters(), **options)
    engine = make(comm, config, model=model)
    for step in range(8):
        for owner, its in ((optimizer, net), (engine.optimizer, model)):
            group = owner.param_groups[0]
            if step in (2, 5):
                group["weight_decay"] = 0.1 * step
            if step in (4, 6) and "onebit" in name:
                group["exp_avg_mask"] = [
                    torch.arange(p.numel()).view(p.shape) % step > 0
                    for p in its.parameters()
                ]
        optimizer.zero_grad()
        loss_of(net, comm.rank, step * 10).backward()
        optimizer.step()
        train(engine, range(step, step + 1))
        assert same_bits(flat(model), flat(net)), step
    engine.destroy()


def test_a_setting_that_is_refused_does_not_cost_the_engine() -> None:
    engine = alone(config_of(**ONEBIT))
    group = engine.optimizer.param_groups[0]
    for step, (key, value) in enumerate(
        {"betas": (0.1, 0.2), "weight_decay": "x", "exp_avg_mask": 3}.items()
    ):
        before = group.get(key)
        group[key] = value
        with pytest.raises((thinwire.Error, TypeError), match=key):
            train(engine, range(1))
        group[key] = before
        train(engine, range(1))
        assert engine.global_steps == step + 1


def test_lines_of_the_log(caplog: Any) -> None:
    caplog.set_level("INFO", "thinwire")

    def run(comm: Any) -> None:
        engine = make(comm, config_of(**ONEBIT, **FP16, steps_per_print=3))
        for step in range(7):
            loss = loss_of(engine, comm.rank, step)
            infinite = step in (1, 2)
            engine.backward(loss.half() * (float("inf") if infinite else 1))
            engine.step()

    run_local_ranks(2, run)
    texts = [record.getMessage() for record in caplog.records]
    assert texts.count("step=3, skipped=2, lr=[0.01], mom=[(0.9, 0.999)]") == 1
    skipped = [text for text in texts if "was skipped on all ranks" in text]
    assert len(skipped) == 2
    assert "1 so far" in skipped[0]
    assert "the loss scale was 256 and is 256 now" in skipped[0]
    assert "2 so far" in skipped[1]
    assert "the loss scale was 256 and is 128 now" in skipped[1]
    assert (
        sum("from now on ranks exchange momentum in one bit" in text for text in texts)
        == 1
    )
    assert sum("the loss is float16 and is widened" in text for text in texts) == 1


@pytest.mark.parametrize("has_handlers", [True, False])
def test_what_a_configuration_asks_for_is_printed_without_a_logging_set_up(
    has_handlers: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level("INFO", "thinwire")
    monkeypatch.setattr(_log.logger, "hasHandlers", lambda: has_handlers)

    def run(comm: Any) -> None:
        asked = {"wall_clock_breakdown": True, "memory_breakdown": True}
        train(make(comm, config_of(steps_per_print=2, **asked)), range(2))

    run_local_ranks(2, run)
    printed = capfd.readouterr().err
    for begin in ("step=2, ", "time per step, ", "memory of this rank after"):
        logged = [text for text in caplog.messages if text.startswith(begin)]
        lines = [text for text in printed.splitlines() if text.startswith(begin)]
        assert (len(logged), len(lines)) == ((1, 0) if has_handlers else (0, 1))


def test_every_local_rank_prints_what_a_configuration_asks_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "time per step, mean of 2 steps"
    monkeypatch.setattr(_log.logger, "hasHandlers", lambda: False)
    monkeypatch.setattr(_log._core, "take_log", lambda: [("info", text)])

    def run(comm: Any) -> None:
        if comm.rank == 1:  # which may find the lines of rank 0
            _log.forward(comm)

    run_local_ranks(2, run)
    assert capfd.readouterr().err.splitlines() == [text]


@by_ranks(2)
def test_keys_without_effect_are_one_warning(comm: Any, caplog: Any) -> None:
    ignored = optimizer_of("OneBitAdam", cuda_aware=True) | {"dump_state": True}
    config = config_of(**ignored)
    del config["gradient_clipping"]  # its absence has a note of its own
    make(comm, config)
    comm.barrier()
    told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(told) == 1
    keys = "optimizer.params.cuda_aware, dump_state"
    assert told[0].startswith(f"configuration: these keys have no effect: {keys} (")


def test_parameters_that_are_not_given_stay(caplog: Any) -> None:
    def run(comm: Any) -> None:
        model = Net(seed=comm.rank)
        given = [p for n, p in model.named_parameters() if not n.startswith("last")]
        engine = make(comm, config_of(), model=model, model_parameters=given)
        start = model.last.weight.detach().clone()
        train(engine, range(2))
        assert same_bits(model.last.weight.detach(), start)
        comm.require_same("last", str(start.sum().item()))

    run_local_ranks(2, run)
    assert caplog.text.count("they are not trained: 'last.weight', 'last.bias'") == 1


def test_training_data_are_shared_out() -> None:
    def run(comm: Any) -> list[int]:
        config = config_of(train_micro_batch_size_per_gpu=2)
        _, _, loader, schedule = thinwire.initialize(
            model=Net(),
            config=config,
            training_data=list(range(11)),
            process_group=comm,
        )
        assert schedule is None
        assert len(loader) == 3
        return [int(x) for batch in loader for x in batch]

    parts = run_local_ranks(2, run)
    assert len(parts[0]) == len(parts[1]) == 5
    assert len(set(parts[0] + parts[1])) == 10

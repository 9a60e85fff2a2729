# SPDX-License-Identifier: Apache-2.0
"""Misuse that an Engine refuses, with its texts, and uses that do no harm. Buffers,
evaluations, and an engine's end."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import thinwire
import torch
from engines import (
    BF16,
    FP16,
    ONEBIT,
    Breaks,
    Net,
    alone,
    config_of,
    flat,
    loss_of,
    make,
    same_bits,
    train,
    trained,
    zero,
)
from local_ranks import by_ranks
from ranks import failure_of
from thinwire.comm import run_local_ranks
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.quick


def refused(told: str, call: Callable[..., Any], *given: Any) -> None:
    """The call raises an error whose name and text match."""
    assert re.match(told, failure_of(lambda: call(*given)))


@by_ranks(1)
def test_backwards_that_are_refused(comm: Any) -> None:
    engine = make(comm, config_of())
    refused("TypeError: loss must be a tensor, got float", engine.backward, 1.0)
    vector, one = torch.zeros(2, requires_grad=True), torch.zeros(())
    refused("InvalidArgument: .*a scalar of floating point", engine.backward, vector)
    refused("InvalidArgument: .*from the module's parameters", engine.backward, one)
    refused("FailedPrecondition: .*no backward since", engine.step)
    engine.backward(loss_of(engine, 0, 0))
    loss = loss_of(engine, 0, 1)
    refused("FailedPrecondition: .*call step", engine.backward, loss)
    refused("FailedPrecondition: .*1 backward.s. would be lost", engine.zero_grad)
    engine.step()
    engine.zero_grad()
    engine.optimizer.zero_grad()
    refused("FailedPrecondition: .*remove optimizer.step", engine.optimizer.step)
    group = {"params": [torch.nn.Parameter(torch.ones(1))]}
    add = engine.optimizer.add_param_group
    refused("FailedPrecondition: .*make a new engine", add, group)
    loss_of(engine, 0, 2).backward()
    loss = loss_of(engine, 0, 2)
    refused("FailedPrecondition: .*not the engine's", engine.step)
    refused("FailedPrecondition: .*not the engine's", engine.backward, loss)


UNKNOWN = ("freeze_step", "dynamic_loss_scale", "scale_window", "cur_iter")
CONSTANT = ("overflow", "clip_grad", "custom_loss_scaler", "external_loss_scale")


@pytest.mark.parametrize("name", UNKNOWN + CONSTANT)
def test_an_attribute_of_the_optimizer_that_nobody_reads(name: str) -> None:
    engine = alone(config_of(**ONEBIT))
    with pytest.raises(thinwire.FailedPrecondition, match=f"engine.optimizer.{name}:"):
        setattr(engine.optimizer, name, 3)


@pytest.mark.parametrize("changes", [{}, zero(2)])
def test_a_reentrant_checkpoint_of_a_module_that_is_used_twice(
    changes: dict[str, Any],
) -> None:
    def loss() -> torch.Tensor:
        h = torch.ones(2, 3, requires_grad=True)
        for _ in range(2):
            h = checkpoint(layer, h, use_reentrant=is_reentrant)
        return h.sum()

    layer = torch.nn.Linear(3, 3)
    engine = alone(config_of(**changes), model=layer)
    is_reentrant = True
    refused("FailedPrecondition: .*give use_reentrant=False", engine.backward, loss())
    is_reentrant = False
    engine.backward(loss())
    engine.step()
    assert engine.was_step_applied()


@by_ranks(1)
def test_an_exception_in_backward_leaves_a_new_window(comm: Any) -> None:
    engine, undisturbed = make(comm, config_of()), make(comm, config_of())
    with pytest.raises(ValueError, match="breaks"):
        engine.backward(Breaks.apply(loss_of(engine, 0, 0)))
    train(engine, range(2))
    train(undisturbed, range(1))  # the same running statistics do not matter
    train(undisturbed, range(1, 2))
    assert same_bits(flat(engine.module), flat(undisturbed.module))


@by_ranks(1)
def test_what_scripts_do_without_harm(comm: Any) -> None:
    want = trained(comm, 4)
    engine = make(comm, config_of())
    engine.train()
    for step in range(4):
        engine.module.zero_grad()  # drops gradients
        if step == 1:
            engine.module.to(torch.device("cpu", 0))  # copies every parameter
        if step == 2:
            engine.eval()
            with torch.no_grad():
                engine(torch.zeros(2, 7))
            engine.train()
        engine.backward(loss_of(engine, 0, step * 10))
        engine.step()
    assert same_bits(flat(engine.module), flat(want.module))
    assert engine.first is engine.module.first  # by the module's attributes
    assert [n for n, _ in engine.named_parameters()] == [
        n for n, _ in Net().named_parameters()
    ]
    assert set(engine.state_dict()) == set(Net().state_dict())


@by_ranks(1)
def test_changes_that_are_found_out(comm: Any) -> None:
    def freeze(engine: Any) -> None:
        engine.module.first.weight.requires_grad_(False)

    def unfreeze(engine: Any) -> None:
        engine.module.frozen.requires_grad_(True)

    def replace(engine: Any) -> None:
        state = copy.deepcopy(engine.module.state_dict())
        engine.module.load_state_dict(state, assign=True)

    def narrow(engine: Any) -> None:
        engine.module.half()

    for change, text in (
        (freeze, "'first.weight' was frozen or removed"),
        (unfreeze, "'frozen' was added or unfrozen"),
        (replace, "was added or unfrozen after the engine was made, or replaced"),
        (narrow, "its dtype was torch.float32 .* is torch.float16 now"),
    ):
        engine = make(comm, config_of())
        change(engine)
        loss = engine.module.last.bias.float().sum()
        refused(f"FailedPrecondition: .*{text}", engine.backward, loss)
    engine = make(comm, config_of())
    engine.backward(loss_of(engine, 0, 0))
    torch.nn.utils.clip_grad_norm_(engine.parameters(), 1e-3)
    refused("FailedPrecondition: .*clip_grad_norm_", engine.step)


@by_ranks(1)
def test_a_loss_through_another_engines_module(comm: Any) -> None:
    made, judge = make(comm, config_of()), torch.nn.Linear(1, 1)
    judging = make(comm, config_of(), model=judge)
    for step in range(2):
        out = made(torch.ones(4, 7)).unsqueeze(-1)
        judging.backward(judging(out.detach()).mean())
        judging.step()
        judge.requires_grad_(False)
        made.backward(judging(out).mean())
        made.step()
        judge.requires_grad_(True)
    assert step + 1 == made.global_steps == judging.global_steps
    made.backward(judging(made(torch.ones(4, 7)).unsqueeze(-1)).mean())
    loss = judging(torch.ones(4, 1)).mean()
    refused(
        "FailedPrecondition: .*freeze this one for that loss", judging.backward, loss
    )


@by_ranks(1)
def test_sparse_gradients_are_refused_by_name(comm: Any) -> None:
    class Words(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(5, 3, sparse=True)

    engine = make(comm, config_of(), model=Words())
    loss = engine.table(torch.tensor([1])).sum()
    refused("InvalidArgument: .*'table.weight'.* sparse=False", engine.backward, loss)


@by_ranks(1)
def test_what_deepspeed_has_and_thinwire_does_not(comm: Any) -> None:
    engine = make(comm, config_of())
    for name, feature in (
        ("train_batch", "pipeline parallelism"),
        ("eval_batch", "pipeline parallelism"),
        ("save_moe_checkpoint", "files and groups of its own for experts"),
        ("compile", "DeepCompile"),
        ("get_sequence_parallel_group", "sequence parallelism"),
    ):
        refused(
            f"Unavailable: {name}: Thinwire has no {feature}", getattr(engine, name)
        )


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(range(3))


@by_ranks(2)
def test_inquiries(comm: Any) -> None:
    engine = make(comm, config_of(**BF16, **zero(2), steps_per_print=7))
    assert engine.get_global_grad_norm() is None and not engine.was_step_applied()
    assert engine.zero_optimization() and engine.zero_optimization_stage() == 2
    assert engine.bfloat16_enabled() and not engine.fp16_enabled()
    assert (
        not engine.dynamic_loss_scale() and engine.loss_scale() == engine.cur_scale == 1
    )
    for scale, is_dynamic in ((0, True), (4, False)):
        other = make(comm, config_of(fp16={"enabled": True, "loss_scale": scale}))
        assert other.dynamic_loss_scale() == is_dynamic
        other.destroy()
    assert engine.steps_per_print() == 7 and engine.get_mom() == [(0.9, 0.999)]
    assert (engine.global_rank, engine.world_size) == (comm.rank, 2)
    assert engine.dp_world_size == 2 and engine.device == torch.device("cpu")
    train(engine, range(1))
    assert engine.get_global_grad_norm() == engine.report.grad_norm > 0
    assert (
        engine.mean(float(comm.rank)) == engine.mean(torch.tensor([comm.rank])) == 0.5
    )
    loader = engine.deepspeed_io(list(range(11)))
    assert [len(batch) for batch in loader] == [4, 1] and len(loader.sampler) == 5
    refused("InvalidArgument: .*IterableDataset", engine.deepspeed_io, Stream())
    refused("InvalidArgument: .* a dataset of 1 for 2 ranks", engine.deepspeed_io, [7])
    assert len(engine.deepspeed_io([7], data_sampler=[0])) == 1


@pytest.mark.parametrize("how", ["broadcast", "average", "as_they_are"])
def test_buffers(how: str) -> None:
    def run(comm: Any) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        model = Net()
        with torch.no_grad():
            model.norm.running_mean.fill_(comm.rank)
            model.norm.num_batches_tracked.fill_(comm.rank + 5)
        engine = make(comm, config_of(thinwire={"buffers": how}, **FP16), model=model)
        start = model.norm.running_mean.clone()
        assert start.dtype == torch.float16
        train(engine, range(1))
        own = model.norm.running_mean.clone()
        with engine.evaluation():
            assert not engine(torch.zeros(4, 7).half()).requires_grad
            inside = model.norm.running_mean.clone()
            refused = pytest.raises(thinwire.FailedPrecondition, match="evaluation")
            with refused, torch.enable_grad():
                engine.backward(loss_of(engine, comm.rank, 1))
        train(engine, range(1, 2))
        return (
            [start, own, inside],
            model.norm.num_batches_tracked,
            model.norm.running_mean,
        )

    first, second = run_local_ranks(2, run)
    start = {"broadcast": (0.0, 0.0), "average": (0.5, 0.5), "as_they_are": (0.0, 1.0)}[
        how
    ]
    assert (first[0][0][0].item(), second[0][0][0].item()) == start
    assert not torch.equal(first[0][1], second[0][1])
    assert torch.equal(first[0][2], second[0][2]) == (how != "as_they_are")


@by_ranks(1)
def test_an_engine_goes_when_nobody_has_it(comm: Any) -> None:
    model = Net()
    engine = make(comm, config_of(**zero(2)), model=model)
    train(engine, range(1))
    gone = weakref.ref(engine)
    values = flat(model)
    del engine
    gc.collect()
    assert gone() is None
    assert same_bits(flat(model), values)
    loss_of(model, 0, 0).backward()  # hooks are harmless
    again = make(comm, config_of(), model=model)
    train(again, range(1))
    again.destroy()
    again.destroy()
    for call in (
        lambda: again.backward(loss_of(model, 0, 0)),
        again.step,
        lambda: again.mean(1),
    ):
        refused("FailedPrecondition: .*destroyed", call)


@by_ranks(1)
def test_an_engine_of_another_process_refuses(comm: Any) -> None:
    engine = make(comm, config_of())
    engine._training.process -= 1  # as after os.fork()
    refused("FailedPrecondition: .*that forked this one", engine.step)
    engine.destroy()
    engine._training.process += 1
    train(engine, range(1))


@by_ranks(1)
def test_an_engine_is_neither_copied_nor_pickled(comm: Any) -> None:
    engine = make(comm, config_of())
    for action in (copy.deepcopy, pickle.dumps):
        refused("TypeError: .*save_checkpoint", action, engine)

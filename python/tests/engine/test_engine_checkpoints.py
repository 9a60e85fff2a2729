# SPDX-License-Identifier: Apache-2.0
"""save_checkpoint() and load_checkpoint(), as users of DeepSpeed know them, and the same
by thinwire.save and load."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import thinwire
import torch
from engines import (
    BF16,
    FP16,
    RUNS,
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
from safetensors import safe_open
from thinwire.comm import run_local_ranks


def saved_names(checkpoint: Path) -> set[str]:
    (file,) = checkpoint.glob("step-*/model.safetensors")
    with safe_open(str(file), "pt") as tensors:
        return set(tensors.keys())


def others(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([b.double().reshape(-1) for b in module.buffers()])


@pytest.mark.parametrize("stop", [2, 5])
@pytest.mark.parametrize("name", RUNS)
@by_ranks(2)
def test_a_resumed_run_has_the_bits_of_an_unbroken_one(
    comm: Any, name: str, stop: int, tmp_path: Path
) -> None:
    changes = RUNS[name]
    whole = trained(comm, stop, **changes)
    assert whole.save_checkpoint(tmp_path, client_state={"epoch": stop})
    train(whole, range(stop, 8))
    resumed = make(comm, config_of(**changes))
    train(resumed, range(3, 4))  # overwritten by what is loaded
    path, client_state = resumed.load_checkpoint(tmp_path)
    assert path.startswith(str(tmp_path / f"global_step{stop}" / "step-"))
    assert client_state == {"epoch": stop}
    assert resumed.global_steps == resumed.micro_steps == stop
    assert resumed.global_samples == stop * resumed.train_batch_size()
    train(resumed, range(stop, 8))
    assert same_bits(flat(resumed.module), flat(whole.module))
    assert resumed.loss_scale() == whole.loss_scale()
    assert resumed.report.phase == whole.report.phase


def test_any_number_of_ranks_and_any_stage_continues(tmp_path: Path) -> None:
    def ranks(n: int, sharding: dict[str, Any], tag: str | None) -> Any:
        def run(comm: Any) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
            engine = make(comm, config_of(**sharding))
            notes: list[str] = []
            if tag is not None:
                notes = thinwire.load(tmp_path / tag, engine).notes
            loaded = flat(engine.module)
            train(engine, range(n, n + 3))
            engine.save_checkpoint(tmp_path, f"by_{n}")
            return loaded, flat(engine.module), notes

        return run_local_ranks(n, run)

    (_, two, _), _ = ranks(2, {}, None)
    ((one_start, one, notes),) = ranks(1, zero(1), "by_2")
    assert same_bits(one_start, two)
    assert any("saved by 2 ranks" in note for note in notes)
    three = ranks(3, zero(2), "by_1")
    for start, end, _ in three:
        assert same_bits(start, one)
        assert same_bits(end, three[0][1])
    assert (tmp_path / "latest").read_text() == "by_3"


def test_buffers_frozen_and_tied_parameters_come_back(tmp_path: Path) -> None:
    def run(comm: Any) -> None:
        engine = trained(comm, 3)
        with torch.no_grad():
            engine.module.frozen.add_(comm.rank + 1)
        engine.save_checkpoint(tmp_path, "a")
        rank_0s = torch.zeros_like(others(engine.module)) + others(engine.module)
        comm.broadcast(rank_0s, 0)
        frozen = engine.module.frozen.detach().clone()
        comm.broadcast(frozen, 0)
        again = make(comm, config_of())
        again.load_checkpoint(tmp_path, "a")
        assert same_bits(others(again.module), rank_0s)
        assert same_bits(again.module.frozen.detach(), frozen)
        assert again.module.third.weight is again.module.second.weight
        assert again.module.norm.num_batches_tracked.item() == 3

    run_local_ranks(2, run)
    assert saved_names(tmp_path / "a") == set(Net().state_dict()) - {"third.weight"}


TYPES = [
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.uint16, torch.uint32, torch.uint64, torch.complex64),
]


def with_types(value: int) -> torch.nn.Module:
    """Returns a module with buffers and frozen parameters of all types."""
    module = torch.nn.Linear(7, 1)
    for dtype in TYPES:
        values = torch.arange(value, value + 6).float().to(dtype)
        module.register_buffer(f"{dtype}".replace(".", "_"), values)
        frozen = torch.nn.Parameter(values.clone().view(2, 3), requires_grad=False)
        module.register_parameter(f"{dtype}_frozen".replace(".", "_"), frozen)
    module.register_buffer("unknown", torch.full((2,), value, dtype=torch.complex128))
    return module


@pytest.mark.parametrize("kind", ["engine", "optimizer"])
@by_ranks(2)
def test_tensors_of_all_types_are_saved_or_named(
    comm: Any, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def made(value: int) -> tuple[torch.nn.Module, Any, dict[str, Any]]:
        module = with_types(value)
        if kind == "engine":
            return module, make(comm, config_of(), model=module), {}
        trained = [p for p in module.parameters() if p.requires_grad]
        return (
            module,
            thinwire.AdamW(trained, process_group=comm),
            {"module": module},
        )

    module, run, options = made(0)
    with caplog.at_level("WARNING", "thinwire"):
        thinwire.save(tmp_path, run, **options)
        thinwire.save(tmp_path / "again", run, **options)
    other, resumed, options = made(1)
    notes = thinwire.load(tmp_path, resumed, **options).notes
    for name, value in module.state_dict().items():
        got = other.state_dict()[name]
        is_same = torch.equal(got.view(torch.uint8), value.view(torch.uint8))
        assert is_same != (name == "unknown"), name
    comm.barrier()
    told = [text for text in caplog.messages if text.startswith("not saved")]
    assert len(told) == 1 and told[0].endswith("type of tensors: 'unknown'")
    assert notes[-1] == told[0].replace("saved", "loaded")


class Wrapped(torch.nn.Module):
    """Puts a prefix before all names, as torch.compile and DDP do."""

    def __init__(self, inner: torch.nn.Module, prefix: str) -> None:
        super().__init__()
        for name in reversed(prefix.split(".")[:-1]):
            outer = torch.nn.Module()
            setattr(outer, name, inner)
            inner = outer
        self.__dict__["_modules"] = inner._modules


WRAPPERS = ("_orig_mod.", "module.", "module._orig_mod.")


def inside(module: torch.nn.Module) -> torch.nn.Module:
    while not hasattr(module, "first"):
        module = next(module.children())
    return module


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("client", [None, lambda p: torch.optim.SGD(p, 0.1, 0.9)])
@by_ranks(2)
def test_prefixes_of_wrappers_do_not_count(
    comm: Any, client: Any, strict: bool, tmp_path: Path
) -> None:
    def run(prefix: str) -> tuple[Any, torch.nn.Module]:
        module = Wrapped(Net(), prefix) if prefix else Net()
        engine = make(comm, config_of(), model=module, optimizer=client)
        return engine, inside(module)

    def step(engine: Any, net: torch.nn.Module, number: int) -> None:
        engine.backward(loss_of(net, comm.rank, number))
        engine.step()

    for prefix in WRAPPERS:
        for there, here in ((prefix, ""), ("", prefix)):
            engine, net = run(there)
            step(engine, net, 0)
            engine.save_checkpoint(tmp_path, "a")
            step(engine, net, 1)
            again, its = run(here)
            assert again.load_checkpoint(tmp_path, "a", load_module_strict=strict)[0]
            assert its.norm.num_batches_tracked == 1
            step(again, its, 1)
            assert same_bits(flat(its), flat(net))


@pytest.mark.parametrize("strict", [True, False])
@by_ranks(2)
def test_a_checkpoint_of_another_model_is_refused(
    comm: Any, strict: bool, tmp_path: Path
) -> None:
    trained(comm, 1).save_checkpoint(tmp_path, "a")
    other = make(comm, config_of(), model=torch.nn.Sequential(torch.nn.Linear(7, 33)))
    with pytest.raises(thinwire.CorruptCheckpoint, match="of another model|to another"):
        other.load_checkpoint(tmp_path, "a", load_module_strict=strict)


@by_ranks(2)
def test_what_does_not_fit_is_one_warning_and_buffers_can_be_renamed(
    comm: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = trained(comm, 2)
    engine.save_checkpoint(tmp_path, "a")
    net = Net()
    net.second, net.other = torch.nn.Identity(), net.last
    del net.last
    net.mean = net.norm
    del net.norm
    other = make(comm, config_of(), model=net)
    with caplog.at_level("WARNING", "thinwire"):
        other.load_checkpoint(tmp_path, "a", load_module_strict=False)
    comm.barrier()
    told = [text for text in caplog.messages if "left out" in text]
    assert len(told) == 1 and "missing 'other.weight'" in told[0]
    assert "unexpected 'last.weight'" in told[0]
    buffer = "norm.running_mean"
    rename = {buffer: "mean.running_mean", "norm.weight": "mean.weight"}
    thinwire.load(tmp_path / "a", other, strict=False, rename=rename)
    saved = engine.module.norm
    comm.broadcast(saved.running_mean, 0)
    assert same_bits(net.mean.running_mean, saved.running_mean)
    assert same_bits(net.mean.weight, saved.weight)


def test_frozen_ones_are_left_out_on_request(tmp_path: Path) -> None:
    def run(comm: Any) -> None:
        engine = trained(comm, 1)
        engine.save_checkpoint(tmp_path, "all")
        engine.save_checkpoint(tmp_path, "less", exclude_frozen_parameters=True)

    run_local_ranks(2, run)
    left_out = saved_names(tmp_path / "all") - saved_names(tmp_path / "less")
    assert left_out >= {"frozen", "norm.running_mean"}


@by_ranks(2)
def test_between_windows_only(comm: Any, tmp_path: Path) -> None:
    engine = make(comm, config_of(gradient_accumulation_steps=2))
    engine.backward(loss_of(engine, comm.rank, 0))
    engine.step()
    with pytest.raises(thinwire.FailedPrecondition, match="inside a window"):
        engine.save_checkpoint(tmp_path, "a")
    with pytest.raises(thinwire.FailedPrecondition, match="inside a window"):
        engine.load_module_state_dict(Net().state_dict())
    engine.backward(loss_of(engine, comm.rank, 1))
    engine.step()
    engine.save_checkpoint(tmp_path, "a")


@by_ranks(2)
def test_weights_into_a_running_engine(comm: Any) -> None:
    for changes, dtype in (
        (BF16, torch.bfloat16),
        (zero(2) | FP16, torch.float16),
        ({}, None),
    ):
        engine = trained(comm, 2, **changes)
        other = Net(seed=9).to(dtype or torch.float32)
        engine.load_module_state_dict(other.state_dict())
        assert same_bits(flat(engine.module), flat(other))
        name = "first.weight"
        master = torch.from_dlpack(engine._training.native.full_parameter(name))
        assert torch.equal(master, other.first.weight.detach().float().view(-1))
        train(engine, range(2, 3))
        moved = (flat(engine.module) - flat(other)).abs().max()
        assert 0 < moved < 0.2  # a step from there
    with pytest.raises(thinwire.FailedPrecondition, match="assign=True"):
        engine.load_state_dict(Net().state_dict(), assign=True)


@by_ranks(2)
def test_client_state_comes_back(comm: Any, tmp_path: Path) -> None:
    state = {
        "epoch": 3,
        "best": 0.1 + 0.2,
        "name": "é\n",
        "lr": [1e-3, None, True],
        "n": {"a": {}},
    }

    engine = trained(comm, 1)
    own = state if comm.rank == 0 else {"epoch": 4}
    engine.save_checkpoint(tmp_path, "a", client_state=own)
    assert engine.load_checkpoint(tmp_path, "a")[1] == state
    _, found = engine.load_checkpoint(tmp_path, "a", load_optimizer_states=False)
    assert found == state
    assert engine.load_checkpoint(tmp_path, load_module_only=True)[1] == state
    engine.save_checkpoint(tmp_path, "b")
    assert engine.load_checkpoint(tmp_path)[1] == {}


@by_ranks(2)
def test_what_cannot_be_a_client_state_is_refused_on_all_ranks(
    comm: Any, tmp_path: Path
) -> None:
    engine = trained(comm, 1)
    with pytest.raises(
        (KeyError, thinwire.InvalidArgument), match="global_steps, optimizer"
    ):
        engine.save_checkpoint(
            tmp_path,
            client_state={"optimizer": 1, "global_steps": 2} if comm.rank == 0 else {},
        )
    with pytest.raises(KeyError, match="reserved"):
        engine.save_checkpoint(tmp_path, client_state={"module": 1})
    for value, text in (
        ({"a": [1, {"b": torch.zeros(1)}]}, r"client_state\['a'\]\[1\]\['b'\]"),
        ({"a": {1: 2}}, "names must be text"),
    ):
        with pytest.raises(thinwire.InvalidArgument, match=text):
            engine.save_checkpoint(tmp_path, client_state=value)
    assert not any(tmp_path.iterdir())


@by_ranks(2)
def test_tags_must_be_the_same_on_all_ranks(comm: Any, tmp_path: Path) -> None:
    engine = trained(comm, 1)
    with pytest.raises(thinwire.InvalidArgument, match='tag.*"a1" on rank 1'):
        engine.save_checkpoint(tmp_path, f"a{comm.rank}")
    for tag in ("", "..", "a/b", "latest", "x" * 300):
        with pytest.raises(thinwire.InvalidArgument, match="tag: must be a file name"):
            engine.save_checkpoint(tmp_path, tag)
    assert not any(tmp_path.iterdir())


def test_without_latest_nothing_is_loaded(tmp_path: Path, caplog: Any) -> None:
    def run(comm: Any) -> None:
        engine = make(comm, config_of())
        before = flat(engine.module)
        assert engine.load_checkpoint(tmp_path / "none") == (None, None)
        with pytest.raises(thinwire.Unavailable, match="no complete checkpoint|cannot"):
            engine.load_checkpoint(tmp_path, "missing")
        assert same_bits(before, flat(engine.module))
        train(engine, range(1))
        engine.save_checkpoint(tmp_path, "a", save_latest=False)
        assert engine.load_checkpoint(tmp_path) == (None, None)
        assert engine.load_checkpoint(tmp_path, "a")[0] is not None

    run_local_ranks(2, run)
    assert "has no file 'latest'. If it has a checkpoint, pass its tag" in caplog.text


@pytest.mark.parametrize("has_latest", [True, False])
@by_ranks(2)
def test_a_directory_of_tags_is_not_taken_for_an_empty_one(
    comm: Any, has_latest: bool, tmp_path: Path
) -> None:
    engine = trained(comm, 1)
    assert thinwire.resume(tmp_path, engine) is None
    engine.save_checkpoint(tmp_path, "a", save_latest=has_latest)
    optimizer = thinwire.AdamW(Net().named_parameters(), process_group=comm)
    for trainee in (engine, optimizer):
        for call in (thinwire.resume, thinwire.load):
            with pytest.raises(thinwire.InvalidArgument) as caught:
                call(tmp_path, trainee)
            text = str(caught.value)
            assert f"{tmp_path} has no complete checkpoint of its own" in text
            assert f"but '{tmp_path / 'a'}' has: pass that path" in text
            assert f"engine.load_checkpoint('{tmp_path}', 'a')" in text
    optimizer.close()
    assert thinwire.resume(tmp_path / "a", engine) is not None
    thinwire.save(tmp_path, engine)
    assert thinwire.resume(tmp_path, engine) is not None


@pytest.mark.parametrize("written_by", ["save", "save_checkpoint"])
def test_a_run_starts_anew_where_checkpoints_were_deleted(
    written_by: str, tmp_path: Path
) -> None:
    engine = alone(config_of())
    if written_by == "save":
        thinwire.save(tmp_path, engine)
    else:
        engine.save_checkpoint(tmp_path)
    for path in tmp_path.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    assert (tmp_path / "latest").exists()
    assert thinwire.resume(tmp_path, engine) is None


def test_a_tag_that_is_used_again_has_the_newest(tmp_path: Path) -> None:
    def run(comm: Any) -> None:
        engine = make(comm, config_of())
        for step in range(4):
            train(engine, range(step, step + 1))
            engine.save_checkpoint(tmp_path, "best", client_state={"step": step})
        again = make(comm, config_of())
        again.module.to(torch.device("cpu", 0))  # copies every parameter
        assert again.load_checkpoint(tmp_path)[1] == {"step": 3}
        assert same_bits(flat(again.module), flat(engine.module))

    run_local_ranks(2, run)
    assert [p.name for p in (tmp_path / "best").glob("step-*")] == ["step-0000000004"]


@by_ranks(2)
def test_weights_alone_have_the_saved_masters(comm: Any, tmp_path: Path) -> None:
    engine = trained(comm, 3, **BF16)
    engine.save_checkpoint(tmp_path, "a")
    masters = torch.from_dlpack(engine._training.native.masters())
    for changes in ({"load_optimizer_states": False}, {"load_module_only": True}):
        other = make(comm, config_of(**BF16))
        other.load_checkpoint(tmp_path, "a", **changes)
        assert same_bits(torch.from_dlpack(other._training.native.masters()), masters)
        assert other.global_steps == (3 if "load_optimizer_states" in changes else 0)
        assert other.optimizer.state_dict()["thinwire"]["engine_steps"] == 0
        train(other, range(3, 4))
        assert other.was_step_applied()


@by_ranks(2)
def test_a_scheduler_continues(comm: Any, tmp_path: Path) -> None:
    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5], 0.5)

    engine = make(comm, config_of(), lr_scheduler=schedule)
    train(engine, range(3))
    engine.save_checkpoint(tmp_path, "a")
    train(engine, range(3, 7))
    again = make(comm, config_of(), lr_scheduler=schedule)
    again.load_checkpoint(tmp_path, "a")
    assert again.get_lr() == [0.005]
    train(again, range(3, 7))
    assert again.get_lr() == engine.get_lr() == [0.0025]
    assert same_bits(flat(again.module), flat(engine.module))
    fresh = make(comm, config_of(), lr_scheduler=schedule)
    fresh.load_checkpoint(tmp_path, "a", load_lr_scheduler_states=False)
    assert fresh.lr_scheduler.last_epoch == 0


@by_ranks(2)
def test_strictness(comm: Any, tmp_path: Path) -> None:
    class Larger(Net):
        def __init__(self, seed: int = 0) -> None:
            super().__init__(seed)
            self.more = torch.nn.Parameter(torch.ones(3))

    engine = trained(comm, 2)
    engine.save_checkpoint(tmp_path, "a")
    larger = make(comm, config_of(), model=Larger())
    with pytest.raises(thinwire.CorruptCheckpoint, match="more"):
        larger.load_checkpoint(tmp_path, "a")
    larger.load_checkpoint(tmp_path, "a", load_module_strict=False)
    assert torch.equal(larger.module.first.weight, engine.module.first.weight)
    assert torch.equal(larger.module.more, torch.ones(3))


@by_ranks(2)
def test_save_16bit_model(comm: Any, tmp_path: Path) -> None:
    engine = make(comm, config_of(**BF16))
    assert engine.save_16bit_model(tmp_path / "out")
    state = torch.load(tmp_path / "out" / "pytorch_model.bin", weights_only=True)
    assert state["first.weight"].dtype == torch.bfloat16
    assert torch.equal(state["first.weight"], engine.module.first.weight)
    assert "frozen" not in engine.module_state_dict(exclude_frozen_parameters=True)
    (tmp_path / "file").touch()
    comm.barrier()
    with pytest.raises(thinwire.Unavailable, match="file"):
        engine.save_16bit_model(tmp_path / "file" / "out")
    assert engine.save_16bit_model(None if comm.rank else tmp_path / "of 0")
    with pytest.raises(thinwire.Unavailable, match="save_dir: must be a path, got N"):
        engine.save_16bit_model(None)

# SPDX-License-Identifier: Apache-2.0
"""examples/python/states_from_*.py: what torch.optim and DeepSpeed have saved goes on."""

from __future__ import annotations

import copy
import functools
import math
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import optim_cases as cases
import pytest
import safetensors.torch
import thinwire
import torch
from engines import same_bits
from reference import deepspeed_classes as reference
from thinwire import _core
from thinwire.comm import run_local_ranks
from thinwire.errors import CorruptCheckpoint, InvalidArgument

pytestmark = pytest.mark.quick
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "python"
MOMENTS = ("exp_avg", "exp_avg_sq")
TORCH, DEEPSPEED = "states_from_torch.py", "states_from_deepspeed.py"
TIED = "first.weight"
STEPS, MORE = 5, 5


@pytest.fixture(autouse=True)
def beside_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def convert(script: str, saved: Path, out: Path, *flags: str) -> None:
    """Runs a script of the examples with these arguments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script, str(saved), str(out), *flags])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")


def refused(
    script: str, saved: Path, capsys: pytest.CaptureFixture[str], *flags: str
) -> str:
    """Its last line, where it ends with 2 and has written nothing."""
    with pytest.raises(SystemExit) as ended:
        convert(script, saved, saved.parent / "out", *flags)
    assert ended.value.code == 2
    assert not (saved.parent / "out").exists()
    return capsys.readouterr().err.splitlines()[-1]


def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """One with gradients from 0.5 to 1.5: nothing cancels, so rounding stays small."""
    random = torch.Generator().manual_seed(number)
    for p in net.parameters():
        p.grad = torch.rand(p.shape, generator=random) + 0.5
    optimizer.step()


Held = dict[str, dict[str, torch.Tensor]]


def held_by(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Held:
    """Copies of what each parameter has."""
    states = {name: optimizer.state[p] for name, p in net.named_parameters()}
    copies = {
        name: {key: states[name][key].clone() for key in MOMENTS} for name in states
    }
    for name, p in net.named_parameters():
        copies[name]["weights"] = p.detach().clone()
    return copies


def load(folder: Path, net: torch.nn.Module, comm: Any, held: Held) -> Any:
    """An optimizer that goes on from a folder with the bits of `held`."""
    trained = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
    optimizer = thinwire.AdamW(trained, lr=0.01, weight_decay=0.0, process_group=comm)
    assert thinwire.load(folder, optimizer, module=net).step == STEPS
    assert [name for name, _ in trained] == list(held)
    states = optimizer.state_dict()["state"]
    for number, (name, p) in enumerate(trained):
        assert same_bits(p, held[name]["weights"]), name
        assert states[number]["step"] == STEPS
        for key in MOMENTS:
            assert same_bits(states[number][key], held[name][key]), (name, key)
    return optimizer


def groups_of(net: torch.nn.Module, kind: str) -> Any:
    """All parameters in one group, or biases in a second one, with names or without."""
    if kind == "one":
        return net.parameters()
    if kind == "under DDP":
        return net.named_parameters()
    named = sorted(net.named_parameters(), key=lambda item: item[1].ndim == 1)
    if kind == "two, named":
        return [{"params": named[:2]}, {"params": named[2:]}]
    return [{"params": [p for _, p in group]} for group in (named[:2], named[2:])]


def save(path: Path, net: torch.nn.Module, optimizer: Any, **more: Any) -> Path:
    states = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(states | more, path)
    return path


@pytest.mark.parametrize("made", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize(
    "groups", ["one", "two, named", "two, names in the file", "under DDP"]
)
def test_torchs_adam_continues(made: Any, groups: str, tmp_path: Path) -> None:
    """From the same bits and with the same gradients both go the same way but for
    rounding, u = 2^-24: a step leaves moments that differ from exact ones by 5 u more of
    themselves (nothing cancels), so the t-th update by 5 t u (m) + 2.5 t u (the root of
    v) + 8 u of itself, which is at most 3 lr (gradients from 0.5 to 1.5), and subtracting
    it costs u of a weight below 1. Five steps of both optimizers: less than 20 u."""
    net = holder = cases.model()
    if groups == "under DDP":
        holder = torch.nn.Module()
        holder.module = net  # as DistributedDataParallel names it
    torchs = made(groups_of(holder, groups), lr=0.01, weight_decay=0.0)
    for number in range(STEPS):
        step(net, torchs, number)
    name_of = {p: name for name, p in net.named_parameters()}
    names = [name_of[p] for group in torchs.param_groups for p in group["params"]]
    more = {"names": names} if groups.endswith("in the file") else {}
    convert(TORCH, save(tmp_path / "in.pt", holder, torchs, **more), tmp_path / "out")
    held = held_by(net, torchs)
    for number in range(STEPS, STEPS + MORE):
        step(net, torchs, number)

    def run(comm: Any) -> None:
        ours = cases.model(seed=1)
        optimizer = load(tmp_path / "out", ours, comm, held)
        for number in range(STEPS, STEPS + MORE):
            step(ours, optimizer, number)
        for p, q in zip(ours.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=20 * 2**-24)
        nameless = thinwire.AdamW(cases.model().parameters(), process_group=comm)
        with pytest.raises(CorruptCheckpoint, match="give it named_parameters"):
            thinwire.load(tmp_path / "out", nameless)

    run_local_ranks(2, run)


def test_states_of_torch_that_cannot_continue_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(
        change: Any, made: Any = torch.optim.Adam, kind: str = "one", **options: Any
    ) -> str:
        net = cases.model()
        optimizer = made(groups_of(net, kind), lr=0.01, **options)
        step(net, optimizer, 0)
        path = save(tmp_path / "in.pt", net, optimizer)
        saved = torch.load(path)
        change(saved)
        torch.save(saved, path)
        return refused(TORCH, path, capsys)

    def entry(number: int, **changes: Any) -> Any:
        return lambda saved: saved["optimizer"]["state"][number].update(changes)

    def nothing(saved: Any) -> None:
        pass

    def top(**changes: Any) -> Any:
        return lambda saved: saved.update(changes)

    less, seven, half = torch.full((33,), -1.0), torch.tensor(7.0), torch.tensor(0.5)
    nan, short = math.nan * less, torch.ones(32)
    none = {"model": {"a": less}, "optimizer": {"state": {}, "param_groups": []}}
    for text, change in (
        ("got 1 of '0.weight', 7 of '2.bias'", entry(3, step=seven)),
        ("'2.weight' has no exp_avg", lambda saved: saved["optimizer"]["state"].pop(2)),
        ("exp_avg of '0.bias' must be finite", entry(1, exp_avg=nan)),
        ("exp_avg_sq of '0.bias' must be finite and at", entry(1, exp_avg_sq=less)),
        ("of '2.bias' must be a whole number, got 0.5", entry(3, step=half)),
        ("exp_avg_sq of '0.bias' must have the shape", entry(1, exp_avg_sq=short)),
        ("'names' of 4", lambda saved: saved["model"].update(shift=less)),
        ("must have state dicts 'model' and 'optimizer'", top(optimizer=None)),
        ("must have the same step, got None", top(**none, names=[])),
    ):
        assert text in told(change), text
    assert "'0.weight' has max_exp_avg_sq: AMSGrad" in told(nothing, amsgrad=True)
    assert "'0.weight' has no exp_avg" in told(nothing, torch.optim.SGD)
    assert "must have 'names' of 4 parameters" in told(nothing, kind="two, unnamed")
    missing = refused(TORCH, tmp_path / "there is none.pt", capsys)
    assert "there is none.pt" in missing
    (tmp_path / "empty.pt").touch()
    assert "empty.pt ends too early" in refused(TORCH, tmp_path / "empty.pt", capsys)
    torch.save(cases.model(), tmp_path / "whole.pt")
    whole = refused(TORCH, tmp_path / "whole.pt", capsys)
    assert "whole.pt is no checkpoint of tensors alone" in whole


class Net(torch.nn.Module):
    """With a tied and a frozen parameter and a buffer beside what is trained."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.first, self.last = cases.model(seed)[0], torch.nn.Linear(7, 33, bias=False)
        self.last.weight = self.first.weight
        self.frozen = torch.nn.Parameter(
            torch.full((5,), float(seed)), requires_grad=False
        )
        self.register_buffer("seen", torch.tensor([seed, 2 * seed]))


def write_universal(folder: Path, net: Net, held: Held) -> None:
    """The layout that DeepSpeed 0.19.7's ds_to_universal.py has written of a run with
    ZeRO stage 1 in bf16 on two ranks, torch_adam and two groups; the files here have
    those of its keys that matter. zero/optimizer_state.pt is no pickle that torch would
    load without running code, so it must not be read."""
    for name, state in held.items():
        here = folder / "zero" / name
        here.mkdir(parents=True)
        for file, key in (("fp32", "weights"), *((key, key) for key in MOMENTS)):
            torch.save({"cat_dim": 0, "param": state[key]}, here / f"{file}.pt")
        torch.save(torch.tensor(float(STEPS)), here / "step.pt")
    (folder / "zero" / "optimizer_state.pt").write_bytes(b"not to be read")
    trained = {name: state["weights"].bfloat16() for name, state in held.items()}
    model = {
        "module": {**net.state_dict(), **trained, "last.weight": trained[TIED]},
        "buffer_names": ["seen"],
        "optimizer": None,
        "shared_params": {"last.weight": TIED},
        "sparse_tensor_module_names": set(),
        "ds_version": "0.19.7",
    }
    torch.save(model, folder / "mp_rank_00_model_states.pt")


def universal(folder: Path) -> Held:
    net = Net(seed=3)
    held: Held = {}
    for name in (TIED, "first.bias"):
        shape = net.get_parameter(name).shape
        held[name] = {key: torch.rand(shape) for key in ("weights", *MOMENTS)}
    write_universal(folder, net, held)
    return held


def test_deepspeeds_universal_checkpoint_continues(tmp_path: Path) -> None:
    held = universal(tmp_path / "in")
    convert(DEEPSPEED, tmp_path / "in", tmp_path / "out")

    def run(comm: Any) -> None:
        net = Net(seed=1)
        load(tmp_path / "out", net, comm, held)
        assert net.last.weight is net.first.weight
        assert net.frozen.tolist() == [3.0] * 5 and net.seen.tolist() == [3, 6]

    run_local_ranks(2, run)


def test_states_of_deepspeed_that_cannot_continue_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "in"
    universal(saved)
    step_of = saved / "zero" / "first.bias" / "step.pt"
    torch.save(4, step_of)
    assert refused(DEEPSPEED, saved, capsys).endswith(
        "got 4 of 'first.bias', 5 of 'first.weight'"
    )
    step_of.unlink()
    assert "first.bias/step.pt" in refused(DEEPSPEED, saved, capsys)
    (saved / "mp_rank_01_model_states.pt").touch()
    assert "without tensor or pipeline" in refused(DEEPSPEED, saved, capsys)
    (tmp_path / "plain").mkdir()
    assert "must have zero/*/fp32.pt" in refused(DEEPSPEED, tmp_path / "plain", capsys)


BETA2 = 0.999
FREEZE = ("--freeze-step", str(reference.FREEZE))
# The optimizers that continue from the states, and flags of the script.
LOW_BIT: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "OneBitAdam": (thinwire.OnebitAdam, thinwire.OnebitAdam, FREEZE),
    "OneBitLamb": (thinwire.OnebitLamb, thinwire.OnebitLamb, FREEZE),
    "ZeroOneAdam": (
        thinwire.ZeroOneAdam,
        thinwire.OnebitAdam,
        ("--var-update-scaler", str(reference.UPDATES)),
    ),
}
# The steps after the first in which 0/1 Adam updated v.
UPDATED = {"before": [1, 2], "at": [1, 2, 3, 5], "after": [1, 2, 3, 5]}


@functools.cache
def recorded() -> dict[str, dict[str, Any]]:
    return torch.load(reference.STATES, weights_only=True)


def write_recorded(path: Path, name: str, change: Any = lambda saved: None) -> Any:
    """Writes what DeepSpeed's own class has saved, and returns a copy of it."""
    saved = copy.deepcopy(recorded()[name])
    change(saved)
    torch.save(saved, path)
    return saved


def in_fp16(saved: dict[str, Any]) -> None:
    """The same run in fp16: wrapped by DeepSpeed's FP16_UnfusedOptimizer."""
    module = saved["module"]
    wrapper = {"cur_scale": 1.0, "optimizer_state_dict": saved["optimizer"]}
    saved["optimizer"] = wrapper | {"fp32_groups": [list(module.values())]}
    saved["module"] = {name: p.half() for name, p in module.items()}


def variance(numbers: list[int], ranks: int) -> torch.Tensor:
    """v, free of its bias, after these steps with the ranks' mean gradient."""
    v = torch.zeros(sum(reference.SIZES), dtype=torch.float64)
    for number in numbers:
        all_ = [reference.gradients(number, rank) for rank in range(ranks)]
        mean = sum(torch.cat([g.reshape(-1) for g in one]) for one in all_) / ranks
        v = BETA2 * v + (1 - BETA2) * mean.double() ** 2
    return v / (1 - BETA2 ** len(numbers))


@pytest.mark.parametrize("name", list(recorded()))
def test_deepspeeds_low_bit_states_continue_with_their_variance(
    name: str, tmp_path: Path
) -> None:
    """As a state dict they are refused."""
    kind, moment, ranks, *_ = name.split()
    is_lamb = kind == "OneBitLamb"
    change = in_fp16 if is_lamb and ranks == "2" else lambda saved: None
    saved = write_recorded(tmp_path / "in.pt", name, change)
    own, made, flags = LOW_BIT[kind]
    convert(DEEPSPEED, tmp_path / "in.pt", tmp_path / "out", *flags)
    source = recorded()[name]["optimizer"]
    source = source.get("optimizer_state_dict", source)["state"].values()
    momentum = torch.cat([entry["exp_avg"].reshape(-1) for entry in source])
    steps = reference.MOMENTS[kind][moment]
    seen = [*range(1, min(steps, reference.FREEZE))]
    if kind == "ZeroOneAdam":
        seen = UPDATED[moment]
    weights = recorded()[name]["optimizer"].get("fp32_groups_flat")
    weights = weights or [p.reshape(-1) for p in recorded()[name]["module"].values()]

    def run(comm: Any) -> None:
        net = reference.Net()
        same = own(net.parameters(), process_group=comm)
        for errors in (True, False):  # a load drops them
            if not errors:
                for entry in states_in(saved["optimizer"]).values():
                    for key in ("worker_error", "server_error"):
                        entry.pop(key, None)
            with pytest.raises(InvalidArgument, match="states_from_deepspeed.py"):
                same.load_state_dict(saved["optimizer"])
        same.close()
        net = reference.Net()
        with torch.no_grad():
            for p in net.parameters():
                p.zero_()
        optimizer = made(
            net.named_parameters(), lr=0.01, freeze_step=100, process_group=comm
        )
        assert thinwire.load(tmp_path / "out", optimizer, module=net).step == steps
        assert same_bits(reference.flat(net), torch.cat(weights))
        states = optimizer.state_dict()["state"].values()
        loaded = {k: torch.cat([s[k].reshape(-1) for s in states]) for k in MOMENTS}
        assert same_bits(loaded["exp_avg"], momentum)
        corrected = loaded["exp_avg_sq"].double() / (1 - BETA2**steps)
        torch.testing.assert_close(
            corrected, variance(seen, int(ranks)), rtol=1e-5, atol=0
        )

    run_local_ranks(2, run)


def states_in(optimizer: dict[str, Any]) -> dict[int, Any]:
    states: dict[int, Any] = optimizer.get("optimizer_state_dict", optimizer)["state"]
    return states


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("moment", ["before", "at", "after"])
@pytest.mark.parametrize("kind", ["OneBitAdam", "OneBitLamb"])
def test_a_run_of_deepspeed_continues_with_its_numbers(
    kind: str, moment: str, ranks: int, tmp_path: Path
) -> None:
    saved = write_recorded(tmp_path / "in.pt", f"{kind} {moment} {ranks}")
    semantics = ("--semantics", "deepspeed")
    convert(DEEPSPEED, tmp_path / "in.pt", tmp_path / "out", *semantics)

    def engine_with(semantics: str, comm: Any) -> Any:
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": kind, "params": reference.OPTIONS[kind]},
            "thinwire": {"semantics": semantics},
        }
        net = reference.Net()
        return thinwire.initialize(model=net, config=config, process_group=comm)[0]

    def run(comm: Any) -> None:
        engine = engine_with("corrected", comm)
        with pytest.raises(
            CorruptCheckpoint, match="for deepspeed semantics, and this"
        ):
            thinwire.load(tmp_path / "out", engine)
        engine.destroy()
        engine = engine_with("deepspeed", comm)
        steps = reference.MOMENTS[kind][moment]
        assert thinwire.load(tmp_path / "out", engine).step == steps
        for number in range(steps, steps + reference.MORE):
            engine.backward(engine(reference.gradients(number, comm.rank)))
            engine.step()
        assert same_bits(reference.flat(engine.module), saved["continued"][comm.rank])
        engine.destroy()

    run_local_ranks(ranks, run)


@pytest.mark.parametrize("moment", ["before", "at", "after"])
def test_coefficients_of_deepspeeds_onebit_lamb_are_taken(
    moment: str, tmp_path: Path
) -> None:
    saved = write_recorded(tmp_path / "in.pt", f"OneBitLamb {moment} 2")
    convert(DEEPSPEED, tmp_path / "in.pt", tmp_path / "out", *FREEZE)
    entries = states_in(saved["optimizer"]).values()
    of_file = {
        key: torch.tensor([entry[key] for entry in entries], dtype=torch.float64)
        for key in ("lamb_coeff_freeze", "last_factor")
    }
    steps = reference.MOMENTS["OneBitLamb"][moment]
    fresh = torch.cat([entry["exp_avg_sq_fresh"].reshape(-1) for entry in entries])
    fresh *= (1 - BETA2**steps) / (1 - BETA2 ** (steps - 1))

    def run(comm: Any) -> None:
        net = reference.Net()
        optimizer = thinwire.OnebitLamb(
            net.named_parameters(),
            lr=0.01,
            freeze_step=reference.FREEZE,
            process_group=comm,
        )
        thinwire.load(tmp_path / "out", optimizer, module=net)
        before = optimizer.state_dict()
        for key, values in of_file.items():
            assert torch.equal(before["thinwire"][key], values), key
        kept = [entry.get("exp_avg_sq_fresh") for entry in before["state"].values()]
        assert (kept[0] is not None) == (moment == "after")
        if moment == "after":
            kept = torch.cat([one.reshape(-1) for one in kept])
            torch.testing.assert_close(kept, fresh, rtol=1e-6, atol=0)
        for number in range(steps, steps + 3):
            given = reference.gradients(number, comm.rank)
            for p, gradient in zip(net.parameters(), given):
                p.grad = gradient
            optimizer.step()
        assert optimizer.report.phase == "compressed"
        if moment == "after":
            after = optimizer.state_dict()["thinwire"]
            assert (after["last_factor"] != 1).all()
            key = "lamb_coeff_freeze"
            assert torch.equal(after[key], of_file[key])

    run_local_ranks(2, run)


def test_coefficients_that_do_not_fit_are_named(tmp_path: Path) -> None:
    write_recorded(tmp_path / "in.pt", "OneBitLamb after 2")
    convert(DEEPSPEED, tmp_path / "in.pt", tmp_path / "out", *FREEZE)
    path = tmp_path / "out" / "optimizer.safetensors"
    tensors = safetensors.torch.load_file(path)
    factor = "last_factor/b"
    rest = {name: tensor for name, tensor in tensors.items() if name != factor}
    lamb = thinwire.OnebitLamb(reference.Net().named_parameters(), lr=0.01)
    for text, written, semantics in (
        (f"has no '{factor}'", rest, "corrected"),
        (
            "must be float64 of one element",
            tensors | {factor: torch.ones(2)},
            "corrected",
        ),
        (
            "must hold values from 0",
            tensors | {factor: tensors[factor] * -1},
            "corrected",
        ),
        ("'semantics' must be corrected or deepspeed, got 'other'", tensors, "other"),
    ):
        safetensors.torch.save_file(written, path, {"semantics": semantics})
        with pytest.raises(CorruptCheckpoint, match=re.escape(text)):
            thinwire.load(tmp_path / "out", lamb)


def test_low_bit_states_that_do_not_say_enough_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.pt"
    write_recorded(path, "OneBitAdam before 2")
    assert "--freeze-step is needed" in refused(DEEPSPEED, path, capsys)
    assert "has tensor_size: of a 1-bit" in refused(TORCH, path, capsys)
    write_recorded(path, "OneBitLamb at 1")
    assert "has lamb_coeff_freeze: of a 1-bit" in refused(TORCH, path, capsys)

    def between(saved: Any) -> None:
        states_in(saved["optimizer"])[0]["momentum_accumulator"] += 1

    write_recorded(path, "ZeroOneAdam after 1", between)
    for flags in ((), ("--semantics", "deepspeed")):
        assert "saved between two syncs" in refused(DEEPSPEED, path, capsys, *flags)
    write_recorded(path, "ZeroOneAdam after 1")  # with a scaler of 16: 32 updates
    assert "do not fit 8 steps" in refused(DEEPSPEED, path, capsys)

    def buffer(saved: Any) -> None:
        saved["module"]["shift"] = torch.ones(3)  # the file does not name it

    write_recorded(path, "OneBitAdam after 2 fp16", buffer)
    assert "a flat group has" in refused(DEEPSPEED, path, capsys, *FREEZE)
    assert "fp16 optimizers: use states_from" in refused(TORCH, path, capsys)


def test_exact_states_of_stage_0_are_not_rescaled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In fp16 no other script reads them."""

    def of_adam(saved: Any) -> None:
        for entry in states_in(saved["optimizer"]).values():
            for key in entry.keys() - {*MOMENTS, "step"}:
                del entry[key]

    name, path = "OneBitAdam before 1", tmp_path / "in.pt"
    write_recorded(path, name, lambda saved: (of_adam(saved), in_fp16(saved)))
    flags = ("--semantics", "deepspeed")
    assert "is not of a 1-bit optimizer" in refused(DEEPSPEED, path, capsys, *flags)
    convert(DEEPSPEED, path, tmp_path / "out")
    written = safetensors.torch.load_file(tmp_path / "out" / "optimizer.safetensors")
    for net_name, entry in zip(
        "abc", states_in(recorded()[name]["optimizer"]).values()
    ):
        for key in MOMENTS:
            assert same_bits(written[f"{key}/{net_name}"], entry[key])


# Files of a directory of DeepSpeed, relative to its tag, and what the message says.
DIRECTORIES = {
    "stage 0": (
        ["mp_rank_00_model_states.pt"],
        "py TAG/mp_rank_00_model_states.pt OUT",
    ),
    "stage 1": (
        [
            "mp_rank_00_model_states.pt",
            "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        ],
        "--input_folder TAG --output_folder IN; in a clone of Thinwire run python ",
    ),
    "stage 3": (
        [
            "zero_pp_rank_0_mp_rank_00_model_states.pt",
            "zero_pp_rank_0_mp_rank_00_optim_states.pt",
        ],
        "stage 3 cannot be converted",
    ),
    "universal": (
        ["mp_rank_00_model_states.pt", "zero/a/fp32.pt"],
        "states_from_deepspeed.py TAG OUT",
    ),
}


@pytest.mark.parametrize("stage", DIRECTORIES)
def test_a_directory_of_deepspeed_is_no_fresh_start(stage: str, tmp_path: Path) -> None:
    tag, other = tmp_path / "global_step3", tmp_path / "global_step1"
    files, told = DIRECTORIES[stage]
    for folder in (tag, other):
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).touch()
    (tmp_path / "latest").write_text("global_step3")
    match = re.escape(told.replace("TAG", str(tag)))

    def run(comm: Any) -> None:
        net = cases.model()
        optimizer = thinwire.AdamW(net.parameters(), process_group=comm)
        engine = thinwire.initialize(
            model=net, config={"train_micro_batch_size_per_gpu": 1}, process_group=comm
        )[0]
        for path in (tmp_path, tag):
            for trained in (optimizer, engine):
                for load in (thinwire.resume, thinwire.load):
                    for options in ({}, {"weights_only": True}):
                        with pytest.raises(InvalidArgument, match=match):
                            load(path, trained, **options)
        for where in ((tmp_path,), (tag,), (tmp_path, "global_step3")):
            with pytest.raises(InvalidArgument, match=match):
                engine.load_checkpoint(*where)
        engine.destroy()

    run_local_ranks(2, run)
    with pytest.raises(InvalidArgument, match=match):
        _core.inspect(str(tag))
    (tmp_path / "empty").mkdir()
    optimizer = thinwire.AdamW(cases.model().parameters())
    assert thinwire.resume(tmp_path / "empty", optimizer) is None


def test_converted_states_are_no_fresh_start(tmp_path: Path) -> None:
    (tmp_path / "optimizer.safetensors").touch()
    config = {"train_micro_batch_size_per_gpu": 1}
    engine = thinwire.initialize(model=cases.model(), config=config)[0]
    with pytest.raises(InvalidArgument, match=r"thinwire.load\('"):
        engine.load_checkpoint(tmp_path)
    engine.destroy()

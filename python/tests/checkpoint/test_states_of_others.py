# SPDX-License-Identifier: Apache-2.0
"""examples/python/states_from_*.py: what torch.optim and DeepSpeed have saved goes on."""

from __future__ import annotations

import math
import runpy
import sys
from pathlib import Path
from typing import Any

import optim_cases as cases
import pytest
import thinwire
import torch
from engines import same_bits
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
def test_torchs_adam_goes_on(made: Any, groups: str, tmp_path: Path) -> None:
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


def test_what_torch_has_that_cannot_go_on_is_named(
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


def test_deepspeeds_universal_checkpoint_goes_on(tmp_path: Path) -> None:
    held = universal(tmp_path / "in")
    convert(DEEPSPEED, tmp_path / "in", tmp_path / "out")

    def run(comm: Any) -> None:
        net = Net(seed=1)
        load(tmp_path / "out", net, comm, held)
        assert net.last.weight is net.first.weight
        assert net.frozen.tolist() == [3.0] * 5 and net.seen.tolist() == [3, 6]

    run_local_ranks(2, run)


def test_what_deepspeed_has_that_cannot_go_on_is_named(
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


BETA2, FREEZE_STEP = 0.9, 2


def low_bit_entry(kind: str, shape: torch.Size) -> dict[str, Any]:
    """A parameter's state after STEPS steps as DeepSpeed 0.18's optimizer of this kind
    keeps it. v has seen gradients of 1 alone, one in each step until the freeze."""
    entry: dict[str, Any] = {"step": STEPS, "exp_avg": torch.rand(shape)}
    seen = {"onebit_adam": FREEZE_STEP, "onebit_lamb": FREEZE_STEP, "zero_one_adam": 3}
    entry["exp_avg_sq"] = torch.full(shape, 1 - BETA2 ** seen[kind])
    if kind == "onebit_lamb":
        more = {"lamb_coeff_freeze": 0.3, "last_factor": 1.0, "scaling_coeff": 1.2}
        return entry | more | {"exp_avg_sq_fresh": torch.rand(shape)}
    entry |= {"tensor_size": 1, "corrected_tensor_size": 16, "server_chunk_size": 8}
    entry |= {"worker_error": torch.rand(16), "server_error": torch.rand(8)}
    if kind == "onebit_adam":
        return entry
    entry |= {"var_interval": 2, "var_counter": 1, "lrs": 0}  # 2 updates at interval 1
    entry |= {"local_step_interval": 1, "local_step_counter": 0}
    return entry | {"momentum_accumulator": torch.zeros(shape)}


def low_bit_file(path: Path, kind: str, change: Any = lambda state: None) -> Held:
    """The file of stage 0 in fp32."""
    net = cases.model()
    names = [name for name, _ in net.named_parameters()]
    state = {
        number: low_bit_entry(kind, p.shape)
        for number, p in enumerate(net.parameters())
    }
    change(state[0])
    group = {"lr": 0.01, "betas": (0.9, BETA2), "params": [*range(len(names))]}
    optimizer = {"state": state, "param_groups": [group]}
    torch.save({"module": net.state_dict(), "optimizer": optimizer}, path)
    held: Held = {}
    for number, (name, p) in enumerate(net.named_parameters()):
        held[name] = {"weights": p.detach(), "exp_avg": state[number]["exp_avg"]}
    return held


def in_fp16(path: Path, kind: str) -> None:
    """The same run in fp16: wrapped by DeepSpeed's FP16_Optimizer, which flattens each
    group, or of 1-bit LAMB by FP16_UnfusedOptimizer."""
    saved = torch.load(path)
    module, optimizer = saved["module"], saved["optimizer"]
    masters = list(module.values())
    saved["module"] = {name: p.half() for name, p in module.items()}
    wrapper: dict[str, Any] = {"cur_scale": 1.0, "optimizer_state_dict": optimizer}
    saved["optimizer"] = wrapper
    if kind == "onebit_lamb":
        wrapper["fp32_groups"] = [masters]
    else:
        states = list(optimizer["state"].values())
        flat = dict(states[0])
        for key in {*MOMENTS, "momentum_accumulator"} & flat.keys():
            flat[key] = torch.cat([state[key].flatten() for state in states])
        optimizer["state"] = {0: flat}
        optimizer["param_groups"][0]["params"] = [0]
        wrapper["fp32_groups_flat"] = [torch.cat([p.flatten() for p in masters])]
    torch.save(saved, path)


FREEZE = ("--freeze-step", str(FREEZE_STEP))
# Whose states they are, who goes on from them, and flags of the script.
LOW_BIT: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "onebit_adam": (thinwire.OnebitAdam, thinwire.OnebitAdam, FREEZE),
    "onebit_lamb": (thinwire.OnebitLamb, thinwire.OnebitLamb, FREEZE),
    "zero_one_adam": (
        thinwire.ZeroOneAdam,
        thinwire.OnebitAdam,
        ("--var-update-scaler", "2"),
    ),
}


@pytest.mark.parametrize("kind", LOW_BIT)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_deepspeeds_low_bit_states_go_on_with_the_variance_that_they_had(
    kind: str, precision: str, tmp_path: Path
) -> None:
    """All gradients squared were 1, so the bias-corrected v is 1 after any steps. As a state
    dict they are refused."""
    held = low_bit_file(tmp_path / "in.pt", kind)
    if precision == "fp16":
        in_fp16(tmp_path / "in.pt", kind)
    own, made, flags = LOW_BIT[kind]
    convert(DEEPSPEED, tmp_path / "in.pt", tmp_path / "out", *flags)
    saved = torch.load(tmp_path / "in.pt")["optimizer"]

    def run(comm: Any) -> None:
        net = cases.model(seed=1)
        before = cases.bits(net)
        same = own(net.parameters(), betas=(0.9, BETA2), process_group=comm)
        with pytest.raises(InvalidArgument, match="states_from_deepspeed.py"):
            same.load_state_dict(saved)
        assert cases.bits(net) == before
        same.close()
        optimizer = made(
            net.named_parameters(), lr=0.01, freeze_step=100, process_group=comm
        )
        assert thinwire.load(tmp_path / "out", optimizer, module=net).step == STEPS
        states = optimizer.state_dict()["state"]
        for number, (name, p) in enumerate(net.named_parameters()):
            assert same_bits(p, held[name]["weights"])
            assert same_bits(states[number]["exp_avg"], held[name]["exp_avg"])
            corrected = states[number]["exp_avg_sq"] / (1 - BETA2**STEPS)
            torch.testing.assert_close(corrected, torch.ones_like(p), rtol=1e-6, atol=0)

    run_local_ranks(2, run)


def test_low_bit_states_that_do_not_say_enough_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.pt"
    low_bit_file(path, "onebit_adam")
    assert "--freeze-step is needed" in refused(DEEPSPEED, path, capsys)
    assert "has worker_error: of a 1-bit" in refused(TORCH, path, capsys)
    low_bit_file(path, "onebit_lamb")
    assert "has lamb_coeff_freeze: of a 1-bit" in refused(TORCH, path, capsys)
    between = {"momentum_accumulator": torch.ones(1)}
    low_bit_file(path, "zero_one_adam", lambda state: state.update(between))
    assert "saved between two syncs" in refused(DEEPSPEED, path, capsys)
    low_bit_file(path, "zero_one_adam")  # with a scaler of 16: 17 updates in 5 steps
    assert "do not fit 5 steps" in refused(DEEPSPEED, path, capsys)
    low_bit_file(path, "onebit_adam")
    in_fp16(path, "onebit_adam")
    saved = torch.load(path)
    saved["module"]["shift"] = torch.ones(3)  # a buffer that the file does not name
    torch.save(saved, path)
    flags = ("--freeze-step", "2")
    assert "a flat group has" in refused(DEEPSPEED, path, capsys, *flags)

# SPDX-License-Identifier: Apache-2.0
"""Models on a device in all the ways that programs use them: the CPU's values, or a refusal
that names what is wrong."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import devices
import pytest
import ranks
import torch
from engines import BF16, ONEBIT, alone
from torch import nn

ADAM = {
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "gradient_clipping": 1.0,
}
ZERO_ONE = {
    "optimizer": {
        "type": "ZeroOneAdam",
        "params": {"lr": 0.01, "var_freeze_step": 3, "local_step_scaler": 2},
    }
}
Case = Callable[[torch.device], Any]


def engine_of(model: nn.Module, config: dict[str, Any] = ADAM, **arguments: Any) -> Any:
    return alone(config, model=model, **arguments)


def seeded(make: Callable[[], nn.Module], device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return make().to(device)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))


def x_of(step: int, device: torch.device, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(shape or (4, 8), generator=generator).to(device)


def step_with(engine: Any, loss: torch.Tensor) -> float:
    engine.backward(loss)
    engine.step()
    return loss.item()


def values(model: nn.Module) -> list[list[float]]:
    return [p.detach().cpu().float().flatten().tolist() for p in model.parameters()]


# ---- cases: each returns what must be equal on both


def edited(device: torch.device) -> Any:
    """Masters take in what is written between windows; swaps that are undone change nothing."""
    model = seeded(perceptron, device)
    engine = engine_of(model, ADAM | BF16)
    losses = []
    for step in range(8):
        x = x_of(step, device).bfloat16()
        losses.append(step_with(engine, engine(x).float().square().mean()))
        if step % 3 == 1:
            with torch.no_grad():
                model[0].weight.clamp_(-0.2, 0.2)
        if step % 3 == 2:
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict({k: v * 0.5 for k, v in kept.items()})
            with torch.no_grad():
                losses.append(model(x).float().sum().item())
            model.load_state_dict(kept)
    engine.load_module_state_dict({k: v * 0.5 for k, v in model.state_dict().items()})
    losses.append(step_with(engine, engine(x_of(9, device).bfloat16()).float().sum()))
    return losses, engine.full_parameter("0.weight").cpu().tolist()


def local_steps(device: torch.device) -> Any:
    model = seeded(perceptron, device)
    engine = engine_of(model, ZERO_ONE)
    losses = []
    for step in range(12):
        losses.append(step_with(engine, engine(x_of(step, device)).square().mean()))
        if step % 4 == 3:
            with engine.evaluation():
                losses.append(engine(x_of(0, device)).sum().item())
    with engine.evaluation():
        return losses, values(model)


def whole_values(device: torch.device) -> Any:
    model = seeded(perceptron, device)
    config = ADAM | BF16 | {"zero_optimization": {"stage": 2}}
    engine = engine_of(model, config)
    engine.backward(engine(x_of(0, device).bfloat16()).float().sum())
    gradient = engine.full_gradient("0.bias")
    engine.set_full_gradient("0.bias", 2 * gradient)
    engine.step()
    engine.set_full_parameter(model[2].bias, torch.full((8,), 0.25, device=device))
    engine.set_full_state("0.bias", "exp_avg", torch.ones(16, device=device))
    losses = [step_with(engine, engine(x_of(1, device).bfloat16()).float().sum())]
    use = engine.memory_use()
    assert use["gradients"] > 0 and use["peak"] >= use["states"]
    return losses, gradient.cpu().tolist(), values(model)


def other_optimizers(device: torch.device) -> Any:
    """Those of torch make their own steps, with fp32 masters too."""
    found = []
    for kind, options, section in (
        (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}, {}),
        (torch.optim.Adagrad, {"lr": 0.05}, BF16),
    ):
        model = seeded(perceptron, device)
        optimizer = kind(model.parameters(), **options)
        engine = engine_of(model, dict(section), optimizer=optimizer)
        dtype = model[0].weight.dtype
        for step in range(5):
            y = engine(x_of(step, device).to(dtype))
            found.append(step_with(engine, y.float().square().mean()))
        assert optimizer.param_groups[0]["params"][0] is model[0].weight
    return found


def broken_backward(device: torch.device) -> Any:
    import engines

    model = seeded(perceptron, device)
    engine = engine_of(model, ADAM | {"gradient_accumulation_steps": 2})
    engine.backward(engine(x_of(0, device)).sum())
    engine.step()
    with pytest.raises(ValueError, match="breaks"):
        engine.backward(model[2](engines.Breaks.apply(model[0](x_of(1, device)))).sum())
    for micro in range(2):
        loss = step_with(engine, model[2](x_of(micro, device, 4, 16)).square().mean())
    return loss, values(model)


def offload(device: torch.device) -> Any:
    """The key is accepted with every optimizer, and says what happens anyway."""
    key = {"offload_optimizer": {"device": "cpu", "pin_memory": True}}
    losses = []
    for config in (
        ADAM
        | {"zero_optimization": {"stage": 2, **key}}
        | {"thinwire": {"zero_bits_up": 4, "zero_bits_down": 4}},
        ONEBIT | {"zero_optimization": key} | {"thinwire": {"lean": True}},
        ONEBIT | {"zero_optimization": key},
    ):
        model = seeded(perceptron, device)
        engine = engine_of(model, config)
        assert engine.zero_cpu_offload()
        for step in range(6):
            x = x_of(step, device)
            losses.append(step_with(engine, engine(x).square().mean()))
    return losses


def windows_by_hand(device: torch.device) -> Any:
    """The engine does not know which backward is a window's last."""
    found = []
    for section in ({}, BF16, {"zero_optimization": {"stage": 2}}):
        model = seeded(perceptron, device)
        config = ADAM | section | {"managed_gradient_accumulation": False}
        engine = engine_of(model, config)
        dtype = model[0].weight.dtype
        for step in range(8):
            y = engine(x_of(step, device).to(dtype))
            engine.backward(y.float().square().mean())
            if step % 3 != 1:
                engine.step()
        found.append(values(model))
    return found


def small_ring(device: torch.device) -> Any:
    """Pinned memory that is full has room again when what came first has arrived."""
    from thinwire.engine import _staging

    before, _staging._RING_BYTES = _staging._RING_BYTES, 64
    model = seeded(lambda: nn.Sequential(perceptron(), perceptron()), device)
    engine = engine_of(model, ADAM | {"zero_optimization": {"stage": 2}})
    _staging._RING_BYTES = before
    if device.type != "cpu":
        assert engine._training.link._ring.bytes.numel() == 16 * 8 * 4
    losses = [
        step_with(engine, engine(x_of(k, device)).square().mean()) for k in range(5)
    ]
    return losses, values(model)


SAME: dict[str, Case] = {
    case.__name__: case
    for case in (
        edited,
        local_steps,
        whole_values,
        other_optimizers,
        broken_backward,
        windows_by_hand,
        small_ring,
        offload,
    )
}


def all_cases() -> dict[str, str]:
    """Which of them, and of the uses of a device report, differ, and how."""
    from device_uses import USES

    def of_report(use: Any) -> Case:
        return lambda where: use(0, where).tolist()

    device, found = devices.device(), {}
    uses = {name: of_report(use) for name, use in USES.items()}
    for name, case in (uses | SAME).items():
        try:
            on_cpu, on_device = case(torch.device("cpu")), case(device)
            torch.accelerator.synchronize()
            if not devices.alike(on_cpu, on_device):
                found[name] = f"{on_cpu!r:.300} on the CPU, {on_device!r:.300}"
        except Exception as error:  # noqa: BLE001  all cases are to be told
            found[name] = f"{type(error).__name__}: {error}"
    return found


def test_programs_get_the_values_of_the_cpu() -> None:
    (found,) = devices.run(1, __file__, "all_cases")
    assert not found, found


# ---- refusals


def refusals() -> dict[str, str]:
    import thinwire

    device = devices.device()

    def told(config: dict[str, Any], spoil: Callable[[nn.Module], Any]) -> str:
        """The error of a backward and a step after another backward and this."""
        model = seeded(perceptron, device)
        engine = engine_of(model, ADAM | config)

        def loss() -> torch.Tensor:
            where, dtype = model[0].weight.device, model[0].weight.dtype
            return engine(x_of(0, where).to(dtype)).float().sum()

        if config:
            engine.backward(loss())
        spoil(model)
        has_window = "gradient_accumulation_steps" in config or not config
        return ranks.failure_of(
            lambda: (has_window and engine.backward(loss())) or engine.step()
        )

    @torch.no_grad()
    def write(model: nn.Module) -> None:
        model[0].weight.mul_(2)

    def own_backward(model: nn.Module) -> None:
        model(x_of(0, device)).sum().backward()

    windows, zero_grad = {"gradient_accumulation_steps": 2}, nn.Module.zero_grad
    split = seeded(perceptron, device)
    split[2].to("cpu")
    return {
        "foreign": told({}, own_backward),
        "gradient": told(BF16 | windows, zero_grad),
        "added up": told(windows, zero_grad),
        "inside": told(BF16, write),
        "moved": told({}, lambda model: model.to("cpu")),
        "two devices": ranks.failure_of(lambda: engine_of(split)),
        "two devices alone": ranks.failure_of(
            lambda: thinwire.AdamW(split.parameters())
        ),
    }


def test_what_cannot_be_followed_is_refused_by_name() -> None:
    (found,) = devices.run(1, __file__, "refusals")
    assert found.pop("gradient") == ""  # every backward's are handed over
    for name, text in {
        "foreign": "not the engine's",
        "added up": "'0.weight' is gone",
        "inside": "inside a window of accumulation",
        "moved": "its device was .* is cpu now",
        "two devices": "all must be on one device",
        "two devices alone": "all must be on one device",
    }.items():
        assert re.search(text, found[name]), (name, found)


# ---- checkpoints


KINDS: dict[str, dict[str, Any]] = {
    "ZeRO-2": {**ADAM, "zero_optimization": {"stage": 2, "reduce_bucket_size": 500}},
    "1-bit": ONEBIT,
}
PLACES = ("cpu", "device")


def trained(kind: str, where: str, steps: range, load: str = "", save: str = "") -> Any:
    """Returns the parameters after steps on this rank."""
    import device_cases as cases
    import engines

    with cases.joined() as (comm, device):
        config = engines.config_of(**KINDS[kind], **BF16)
        place = device if where == "device" else "cpu"
        model, engine = cases.made(comm, place, config)
        if load:
            engine.load_checkpoint(load)
        for step in steps:
            cases.step(engine, step)
        if save:
            engine.save_checkpoint(save)
        engine.destroy()
        return cases.values_of(model).tolist()


def saved(folder: str) -> None:
    """Trains and saves with each kind, on the CPU and on the device."""
    for kind, where in itertools.product(KINDS, PLACES):
        trained(kind, where, range(6), save=f"{folder}/{kind}/{where}")


def loaded(folder: str) -> dict[str, list[Any]]:
    """Returns for each kind the parameters after other steps, from both places in both."""
    found: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for kind, first, second in itertools.product(KINDS, PLACES, PLACES):
        load = f"{folder}/{kind}/{first}"
        found[kind].append(trained(kind, second, range(6, 10), load=load))
    return found


@pytest.mark.parametrize("before, after", [(2, 2), (2, 3), (2, 1), (1, 2)])
def test_an_engines_checkpoint_is_loaded_by_any_number_of_ranks_on_any_device(
    before: int, after: int, tmp_path: Path
) -> None:
    devices.run(before, __file__, "saved", str(tmp_path))
    for found in devices.run(after, __file__, "loaded", str(tmp_path)):
        for kind, (expected, *others) in found.items():
            for values in others:
                assert devices.alike(values, expected), kind


def moved(kind: Any, dtype: torch.dtype, *places: Any, **options: Any) -> Any:
    """The parameters after steps in one place and, from their state, one in another."""
    state: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    for place, steps in zip(places, (range(5), range(9, 10)), strict=True):
        torch.manual_seed(0)
        net = perceptron().to(place, dtype)
        optimizer = kind(net.parameters(), lr=0.01, **options)
        if state:
            net.load_state_dict(weights)
            optimizer.load_state_dict(state)
        for number in steps:
            x = x_of(number, torch.device(place)).to(dtype)
            net(x).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        state, weights = optimizer.state_dict(), net.state_dict()
    return values(net)


def states() -> list[Any]:
    """state_dict() and load_state_dict() between devices, and torch's own states."""
    import thinwire

    device, found = devices.device(), []
    for kind, dtype, options in (
        (thinwire.OnebitAdam, torch.bfloat16, {"freeze_step": 3}),
        (thinwire.AdamW, torch.float32, {}),
    ):
        want = moved(kind, dtype, "cpu", "cpu", **options)
        for places in ((device, "cpu"), ("cpu", device)):
            found.append(devices.alike(moved(kind, dtype, *places, **options), want))
    own = perceptron().to(device, torch.bfloat16)
    moments = torch.optim.AdamW(own.parameters())
    own(x_of(0, device).bfloat16()).float().sum().backward()
    moments.step()
    adopted = thinwire.AdamW(own.parameters())
    adopted.load_state_dict(moments.state_dict())
    found.append(adopted.state[own[0].weight]["exp_avg"].shape == (16, 8))
    return found


def ranks_of_a_group_of_the_device() -> list[float]:
    """The only group has no backend for the CPU."""
    import os

    import thinwire

    device = devices.device(int(os.environ["RANK"]))
    torch.accelerator.set_device_index(device.index)
    backend = devices.backends().rpartition(":")[2]
    torch.distributed.init_process_group(backend)
    model = seeded(perceptron, device)
    optimizer = thinwire.OnebitAdam(
        model.parameters(),
        lr=0.01,
        freeze_step=3,
        process_group=torch.distributed.group.WORLD,
        comm_backend_name=backend if backend != "fence_ccl" else "nccl",
    )
    for step in range(5):
        model(x_of(10 * optimizer._comm.rank + step, device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return values(model)[0]


def test_a_group_of_the_device_alone_names_the_ranks() -> None:
    first, second = devices.run(2, __file__, "ranks_of_a_group_of_the_device")
    assert first == second


def test_state_dicts_go_between_devices() -> None:
    assert devices.run(1, __file__, "states") == [[True] * 5]

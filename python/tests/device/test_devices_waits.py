# SPDX-License-Identifier: Apache-2.0
"""When the host waits for the device, and that each wait, event and record_stream() is needed:
without it the test device gives other bits or names the race."""

from __future__ import annotations

from itertools import chain
from typing import Any

import devices
import pytest
import torch
from mutants import Mutants, mutate
from torch import nn

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "accumulation": {"gradient_accumulation_steps": 3},
    "ZeRO-2": {"zero_optimization": {"stage": 2}},
    "bf16": {"bf16": {"enabled": True}},
}
SMALL_BUCKETS = {"bucket_elements": 200}
"""Parameters return in several parts, some of which end inside a parameter."""


def windows() -> dict[str, Any]:
    """Of one window: how many parameters each copy to the device has, then 0 for the end of
    the step; and what was counted."""
    import engines
    from device_uses import counting

    device, found = devices.device(), {}
    for name, section in CONFIGURATIONS.items():
        # Gradients of convolutions in channels_last are not contiguous.
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)))
        config = {
            "optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 2}},
            "thinwire": SMALL_BUCKETS,
            **section,
        }
        if "zero_optimization" in section:
            config["optimizer"] = {"type": "AdamW"}
        model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        engine = engines.alone(config, model=model)
        memory = engine._training.memory
        copies: list[int] = []
        to_device, publish = memory.staging.to_device, memory.publish

        def copy(
            views: Any, tensors: Any, copies: Any = copies, to_device: Any = to_device
        ) -> None:
            copies.append(len(tensors))
            to_device(views, tensors)

        def end(copies: Any = copies, publish: Any = publish) -> None:
            copies.append(0)
            publish()

        memory.staging.to_device, memory.publish = copy, end
        x = torch.randn(2, 8, 4, 4).to(device, memory.params.dtype)
        for _ in range(4):
            copies.clear()
            with counting(device) as used:
                for _ in range(engine.gradient_accumulation_steps()):
                    engine.backward(engine(x).float().square().mean())
                    engine.step()
        found[name] = [copies, used]
    return found


def test_parameters_return_beside_updates_and_the_host_waits_once() -> None:
    (found,) = devices.run(1, __file__, "windows")
    for name in CONFIGURATIONS:
        (*before, end), used = found[name]
        assert end == 0 and 0 not in before and sum(before) == 8, (name, found)
        # ZeRO's buckets have 1024 elements or more.
        assert len(before) >= (2 if name == "ZeRO-2" else 8), (name, found)
        if devices.NAME in ("fence", "cuda"):
            assert (used["host_waits"], used["unpinned_async"]) == (1, 0), (name, used)


# ---- mutants

MUTANTS: Mutants = {
    "thinwire/_staging.py": {
        "the copy does not wait for the gradient": (
            "        stream.wait_event(self._current().record_event())\n"
        ),
        "the gradient is freed too early": "        tensor.record_stream(stream)\n",
        "parameters are overwritten while they are read": (
            "        stream.wait_event(current.record_event())\n"
        ),
        "the forward does not wait for parameters": (
            "        current.wait_event(stream.record_event())\n"
        ),
        "a parameter is sent before it is final": "self._missing[k] == 0 and ",
        "parameters of an unfinished bucket stay behind": (
            "self._missing) if missing >= 0)",
            "self._missing) if missing > 10**9)",
        ),
        "a plain step does not wait for gradients": (
            "        self.staging.wait()\n        for gradient, view in zip",
            "        for gradient, view in zip",
        ),
        "arrays are written while they are sent": (
            "        changed = self.read_parameters()\n        self.staging.wait()\n",
            "        changed = self.read_parameters()\n",
        ),
    },
    "thinwire/engine/_staging.py": {
        "a window ends before gradients have arrived": (
            "            self.memory.staging.wait()\n        self._hand_over(",
            "            pass\n        self._hand_over(",
        ),
        "a gradient is handed over before it has arrived": (
            "event is None or event.query()",
            "True",
        ),
        "a cancelled backward writes later": (
            "        self.memory.staging.wait()\n        self._pending.clear()\n",
            "        self._pending.clear()\n",
        ),
    },
    "thinwire/engine/_hooks.py": {
        "two gradients in one backward": ("if index in self._taken:", "if False:"),
    },
    "thinwire/engine/leaders/link.py": {
        "a sum does not wait for its gradients": (
            "                self._sums.wait_event(event)\n"
        ),
        "a gradient is freed before its sum": (
            "tensor.record_stream(self._sums)",
            "pass",
        ),
        "a window ends before its sums have arrived": (
            "                self.memory.staging.wait()\n",
            "                pass\n",
        ),
        "a backward does not wait for sums of earlier ones": (
            "                self._stream_now().wait_event(event)\n"
        ),
        "a sum of earlier backwards is freed too early": (
            "                before.record_stream(self._stream_now())\n"
        ),
    },
}
*OF_ONE_RANK, OF_LEADERS = MUTANTS.values()


def everything(device: torch.device) -> list[float]:
    """What engines and a plain loop make of it, in all the ways that wait."""
    import thinwire

    buckets = {"bucket_elements": 1000}

    losses = []
    torch.manual_seed(0)
    batches = torch.randn(12, 8, 64).to(device)
    zero_one = {"lr": 0.01, "var_freeze_step": 2}
    for section in (
        {"optimizer": {"type": "ZeroOneAdam", "params": zero_one}},
        {"optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 2}},
    ):
        losses += engine_losses(section | {"thinwire": buckets}, batches)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = thinwire.OnebitAdam(
        model.parameters(), lr=0.01, freeze_step=3, **buckets
    )
    for x in batches:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return [loss.item() for loss in losses]


def engine_losses(config: dict[str, Any], batches: torch.Tensor) -> list[torch.Tensor]:
    import engines

    losses = []
    model = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)]).to(batches.device)
    engine = engines.alone(config, model=model)
    for k, x in enumerate(batches):
        used = model if k % 2 == 0 else model[:3]
        for layer in used:
            x = layer(x).tanh()
        if k == 5:
            broken = model[3](engines.Breaks.apply(model[0](batches[0])))
            with pytest.raises(ValueError, match="breaks"):
                engine.backward(broken.sum())
            for layer in used:  # that of before is gone
                x = layer(x).tanh()
        loss = x.square().mean()
        engine.backward(loss)
        beside = model[0](batches[k]).sum()  # queued before parameters change
        engine.step()
        if k % 3 == 1:
            engine.set_full_parameter("2.bias", torch.full((64,), 0.01 * k))
            with engine.evaluation():
                beside = beside + model[1](batches[0]).sum()
        losses += [loss, beside.detach()]
    return losses


def one_mutant(name: str) -> str:
    """What shows that a wait is missing; empty: nothing does."""
    mutate(MUTANTS, name)
    device = devices.device()
    try:
        if not devices.alike(everything(torch.device("cpu")), everything(device)):
            return "other values"
        torch.accelerator.synchronize()
        found = reentrant()
    except RuntimeError as error:
        return str(error)
    return "" if "there were two in one backward" in found else f"not refused: {found}"


def reentrant() -> str:
    """Checkpointing that gives two gradients of one parameter."""
    import thinwire
    from torch.utils.checkpoint import checkpoint

    device = devices.device()
    model = nn.Linear(4, 4).to(device)
    config = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
    engine, *_ = thinwire.initialize(model=model, config=config)
    x = torch.ones(2, 4, device=device, requires_grad=True)
    y = checkpoint(model, checkpoint(model, x, use_reentrant=True), use_reentrant=True)
    try:
        engine.backward(y.sum())
    except thinwire.errors.Error as error:
        return str(error)
    return ""


@pytest.mark.skipif(not devices.IS_FENCE, reason="races are seen by the test device")
@pytest.mark.parametrize("name", ["", *chain(*OF_ONE_RANK)])
def test_every_wait_is_needed(name: str) -> None:
    (found,) = devices.run(1, __file__, "one_mutant", name)
    assert (found != "") == (name != ""), found


def mutant_of_leaders(name: str) -> str:
    """The error of this rank, or the norms of the last steps' gradients."""
    mutate(MUTANTS, name)
    import leader_cases

    try:
        found = leader_cases.led(["Adam", "Adam bf16, windows of 3"], 2)
    except Exception as error:  # noqa: BLE001  whatever shows it
        return str(error)
    return f"norms {[report[0] for _, _, report in found]}"


@pytest.mark.long
@pytest.mark.skipif(not devices.IS_FENCE, reason="races are seen by the test device")
@pytest.mark.parametrize("name", ["", *OF_LEADERS])
def test_every_wait_of_leaders_is_needed(name: str) -> None:
    found = devices.run(4, __file__, "mutant_of_leaders", name)
    is_seen = len(set(found)) > 1 or not found[0].startswith("norms")
    assert is_seen == (name != ""), found


# ---- without pinned memory


class Refusing:
    """torch.zeros(), which pins the first `count` arrays only."""

    def __init__(self, count: int) -> None:
        self.left, self._zeros = count, torch.zeros
        torch.zeros = self  # type: ignore[assignment]

    def __call__(self, *size: Any, pin_memory: bool = False, **options: Any) -> Any:
        self.left -= pin_memory
        if self.left < 0 and pin_memory:
            raise RuntimeError("no more of it")
        return self._zeros(*size, pin_memory=pin_memory, **options)

    def end(self) -> None:
        torch.zeros = self._zeros


def refused_from(count: int) -> list[Any]:
    """Values of everything() where `count` arrays are pinned, and what was said."""
    lines, device, refusing = devices.told(), devices.device(), Refusing(count)
    on_device = everything(device)
    said = [line for line in lines if "synchronous" in line]
    return [on_device, said, refusing.left]


def on_cpu() -> list[float]:
    return everything(torch.device("cpu"))


@pytest.mark.skipif(not devices.IS_FENCE, reason="it takes the memory away")
def test_if_more_pinned_memory_is_refused_copies_are_waited_for() -> None:
    (expected,) = devices.run(1, __file__, "on_cpu")
    for count in range(12):
        ((found, said, left),) = devices.run(1, __file__, "refused_from", count)
        assert found == expected, count
        (line,) = said
        assert line.startswith("copies from and to fence:0 are synchronous, and so slo")
        assert "bytes of pinned memory were refused (no more of it)" in line
        assert left < 0, count


def late_buffer(device: torch.device) -> list[float]:
    """Gradients of another dtype need an array of their own, in the fourth step."""
    import thinwire

    torch.manual_seed(0)
    model = nn.Linear(300, 300).to(device, torch.bfloat16)
    optimizer = thinwire.OnebitAdam(model.parameters(), lr=0.01, freeze_step=2)
    xs = torch.randn(6, 8, 300).to(device, torch.bfloat16)
    refusing, losses = None, []
    for step, x in enumerate(xs):
        loss = model(x).float().square().mean()
        loss.backward()
        if step == 3:
            refusing = Refusing(0)
        own = [None if p.grad is None else p.grad.float() for p in model.parameters()]
        optimizer.step(grads=own if step >= 3 else None)
        optimizer.zero_grad()
        losses.append(loss)
    assert refusing is not None
    refusing.end()
    return [loss.item() for loss in losses]


def late() -> dict[str, Any]:
    from thinwire._staging import Staging

    lines, device = devices.told(), devices.device()
    same = late_buffer(torch.device("cpu")) == late_buffer(device)
    staging = Staging(device)
    array, values = staging.zeros(4, torch.float32), torch.ones(4, device=device)
    staging.to_host(values, array)
    refusing = Refusing(0)
    staging.zeros(1000, torch.float32)
    refusing.end()
    staging.wait()
    said = [line for line in lines if "synchronous" in line]
    return {"same": same, "in flight": array.tolist(), "said": said}


@pytest.mark.skipif(not devices.IS_FENCE, reason="it takes the memory away")
def test_pinned_memory_that_is_refused_during_a_run() -> None:
    (found,) = devices.run(1, __file__, "late")
    assert found["same"]
    assert found["in flight"] == [1.0] * 4
    (line,) = found["said"]
    # 300 * 301 gradients in fp32, rounded to a power of two.
    assert line.endswith("524288 bytes of pinned memory were refused (no more of it)")


def counted() -> dict[str, int]:
    """Bytes that memory_use() counts on the host."""
    import engines

    device, found = devices.device(), {}
    for name, zero in (("array", {}), ("ring", {"stage": 2})):
        model = nn.Linear(300, 300).to(device)
        config = {"optimizer": {"type": "AdamW"}, "zero_optimization": zero}
        engine = engines.alone(config, model=model)
        use = engine.memory_use()
        found |= {"parameters": use["parameters"], name: use["gradients"]}
        engine.destroy()
        del engine
    return found


@pytest.mark.skipif(not devices.IS_FENCE, reason="it takes the memory away")
@pytest.mark.parametrize("is_pinned", [True, False])
def test_memory_use_counts_what_pinning_takes(is_pinned: bool) -> None:
    env = {} if is_pinned else {"FENCE_WITHOUT_PINNED": "1"}
    (found,) = devices.run(1, __file__, "counted", **env)
    rounded = 524288
    size = rounded if is_pinned else 300 * 301 * 4
    assert found["parameters"] == found["array"] == size
    ring = 300 * 301 * 4 + 16  # each gradient begins at a multiple of 64 bytes
    shard = ring
    assert found["ring"] == shard + (rounded if is_pinned else ring)

# SPDX-License-Identifier: Apache-2.0
"""Models whose gradients have the same bits on every device, and ways to train them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS = 6
WIDTH = 16
ADAM: dict[str, Any] = {"optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}
Use = Callable[[int, torch.device], torch.Tensor]
"""Trains on one rank and one device, and returns values that are equal on all devices."""
LossAt = Callable[[int], torch.Tensor]


def exact_loss(
    parameters: Iterable[torch.Tensor], rank: int, step: int
) -> torch.Tensor:
    """Returns a loss whose gradients have the same bits on every device: no sum is in them."""
    random = torch.Generator().manual_seed(1000 * step + rank)
    total = torch.zeros(())
    for p in parameters:
        factors = torch.randn(p.shape, generator=random).to(p.device, p.dtype)
        total = total.to(p.device) + (p * factors).float().sum()
        total = total + 0.5 * p.square().float().sum()
    return total


class Elementwise(nn.Module):
    """Some parameters and their exact_loss()."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        shapes = ((257, 33), (1025,), (7,), (16, 3, 3, 3))
        self.parts = nn.ParameterList(
            [torch.randn(shape, generator=random) * 0.1 for shape in shapes]
        )

    def forward(self, rank: int, step: int) -> torch.Tensor:
        return exact_loss(self.parts, rank, step)

    def values(self) -> torch.Tensor:
        return values_of(self.parts)


class Layers(nn.Module):
    """Activations and gradients that no device can round in another way."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.first, self.second, self.third = (
            nn.Parameter(torch.randn(WIDTH, WIDTH, generator=random)) for _ in range(3)
        )
        order = torch.randperm(WIDTH, generator=random)
        self.register_buffer("order", torch.eye(WIDTH)[order])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.relu(self.first * x) * self.second + self.third
        return y

    def reordered(self) -> torch.Tensor:
        """Returns a product of matrices whose sums have one element that is not zero."""
        return nn.functional.linear(self.get_buffer("order"), self.first) + self.second


def values_of(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    flat = [p.detach().to("cpu", torch.float32).reshape(-1) for p in parameters]
    return torch.cat(flat)


def x_of(rank: int, step: int, where: torch.device) -> torch.Tensor:
    random = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(WIDTH, WIDTH, generator=random).to(where)


@contextmanager
def engine_of(module: nn.Module, config: dict[str, Any]) -> Iterator[Any]:
    from thinwire import initialize

    engine, *_ = initialize(model=module, config=config)
    yield engine
    engine.destroy()


def take_steps(engine: Any, loss_at: LossAt, steps: Iterable[int]) -> None:
    for step in steps:
        engine.backward(loss_at(step))
        engine.step()


def _trained(module: nn.Module, where: torch.device, loss_at: LossAt) -> torch.Tensor:
    with engine_of(module.to(where), ADAM) as engine:
        take_steps(engine, loss_at, range(STEPS))
    return values_of(module.parameters())


def _of_layers(output: Callable[[Layers, torch.Tensor], Any]) -> Use:
    def use(rank: int, where: torch.device) -> torch.Tensor:
        layers = Layers()
        return _trained(
            layers, where, lambda step: output(layers, x_of(rank, step, where)).sum()
        )

    return use


def channels_last(rank: int, where: torch.device) -> torch.Tensor:
    model = Elementwise().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    found = _trained(model, where, lambda step: model(rank, step))
    pictures = model.parts[-1]
    is_kept = pictures.is_contiguous(memory_format=torch.channels_last)
    if where.type != "cpu" and not is_kept:
        raise RuntimeError("the parameter is no longer in channels_last")
    return found


def unused_parameter(rank: int, where: torch.device) -> torch.Tensor:
    model = Elementwise()

    def loss_at(step: int) -> torch.Tensor:
        parts = list(model.parts)
        return exact_loss(parts[1:] if (rank + step) % 2 else parts, rank, step)

    return _trained(model, where, loss_at)


def input_with_gradient(rank: int, where: torch.device) -> torch.Tensor:
    inputs: list[torch.Tensor] = []

    def output(layers: Layers, x: torch.Tensor) -> Any:
        inputs.append(x.requires_grad_())
        return layers(x)

    found = _of_layers(output)(rank, where)
    gradients = [x.grad for x in inputs if x.grad is not None]
    return torch.cat([found, values_of(gradients)])


def _checkpointed_twice(layers: Layers, x: torch.Tensor) -> Any:
    y = checkpoint(layers, x, use_reentrant=False)
    return checkpoint(layers, y, use_reentrant=False)


def _checkpointed_reentrantly(layers: Layers, x: torch.Tensor) -> Any:
    return checkpoint(layers, x.requires_grad_(), use_reentrant=True)


def shared_parameter(rank: int, where: torch.device) -> torch.Tensor:
    layers = Layers()
    layers.third = layers.second
    return _trained(layers, where, lambda step: layers(x_of(rank, step, where)).sum())


def infinite_gradient(rank: int, where: torch.device) -> torch.Tensor:
    layers = Layers()

    def loss_at(step: int) -> torch.Tensor:
        factor = float("inf") if step == 2 and rank == 0 else 1.0
        loss: torch.Tensor = layers(x_of(rank, step, where)).sum() * factor
        return loss

    return _trained(layers, where, loss_at)


def _under_autocast(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        y = layers.reordered()
    return y.float() * x


def side_stream(rank: int, where: torch.device) -> torch.Tensor:
    use = _of_layers(Layers.forward)
    if where.type == "cpu":
        return use(rank, where)
    stream = torch.Stream(where)
    current = torch.accelerator.current_stream(where)
    stream.wait_event(current.record_event())
    with stream:
        found = use(rank, where)
    current.wait_event(stream.record_event())
    return found


def compiled(rank: int, where: torch.device) -> torch.Tensor:
    layers = Layers()
    fast = torch.compile(layers, backend="aot_eager")
    return _trained(layers, where, lambda step: fast(x_of(rank, step, where)).sum())


USES: dict[str, Use] = {
    "channels_last": channels_last,
    "unused parameter": unused_parameter,
    "input with gradient": input_with_gradient,
    "checkpointing": _of_layers(_checkpointed_twice),
    "reentrant checkpointing": _of_layers(_checkpointed_reentrantly),
    "shared parameter": shared_parameter,
    "infinite gradient": infinite_gradient,
    "autocast": _of_layers(_under_autocast),
    "side stream": side_stream,
    "torch.compile, aot_eager": compiled,
}


# ---- what a step uses


@contextmanager
def counting(device: torch.device) -> Iterator[dict[str, int]]:
    """Yields a dictionary that has, when the body has ended, what it used: `host_waits`, and
    `unpinned_async`, copies that were meant to be asynchronous. It stays empty on devices
    whose waits nothing counts.

    CUDA's profiler counts waits for a stream or an event, and all copies from and to
    pageable memory.
    """
    found: dict[str, int] = {}
    counts = getattr(torch.get_device_module(device), "counts", None)
    if counts is not None:  # the test device
        before = counts()
        yield found
        found |= {name: n - before[name] for name, n in counts().items()}
    elif device.type != "cuda":
        yield found
    else:
        with torch.profiler.profile() as profile:
            yield found
        calls = {event.key: event.count for event in profile.key_averages()}
        waits = ("cudaStreamSynchronize", "cudaEventSynchronize")
        found["host_waits"] = sum(calls.get(name, 0) for name in waits)
        found["unpinned_async"] = sum(
            n for name, n in calls.items() if "Memcpy" in name and "Pageable" in name
        )


def bytes_on(device: torch.device) -> int | None:
    """Returns the bytes that torch has allocated there, or None if it does not count them."""
    for module in (torch.get_device_module(device), torch.accelerator):
        with suppress(AttributeError, RuntimeError, NotImplementedError):
            return int(module.memory_allocated())
    return None


def used_by_engine(config: dict[str, Any], rank: int, device: torch.device) -> str:
    layers = Layers().to(device)
    with engine_of(layers, {**ADAM, **config}) as engine:
        x = x_of(rank, 0, device).to(layers.first.dtype)
        window = range(engine.gradient_accumulation_steps())

        def loss_at(_: int) -> torch.Tensor:
            loss: torch.Tensor = engine(x).float().sum()
            return loss

        return _used(lambda: take_steps(engine, loss_at, window), device)


def used_by_optimizer(rank: int, device: torch.device) -> str:
    from thinwire import optim

    layers = Layers().to(device)
    optimizer = optim.OnebitAdam(layers.parameters(), lr=0.01, freeze_step=2)
    x = x_of(rank, 0, device)

    def step() -> None:
        layers(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    said = _used(step, device)
    optimizer.close()
    return said


def _used(step: Callable[[], None], device: torch.device) -> str:
    """Returns what a step uses, with "differs" before more than a step may use."""
    for _ in range(3):
        step()
    torch.accelerator.synchronize()
    before = bytes_on(device)
    with counting(device) as found:
        for _ in range(STEPS):
            step()
    torch.accelerator.synchronize()
    after = bytes_on(device)
    parts, is_more = ["waits and copies are not counted"], False
    if found:
        waits, copies = found["host_waits"] / STEPS, found["unpinned_async"]
        parts = [f"{waits:.2f} waits of the host", f"{copies} synchronous copies"]
        is_more = waits > 1 or copies > 0
    if before is None or after is None:
        parts.append("bytes are not counted")
    else:
        parts.append(f"{after - before} more bytes on the device")
        is_more |= after > before
    return f"{'differs: ' if is_more else ''}{', '.join(parts)}"

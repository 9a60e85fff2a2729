# SPDX-License-Identifier: Apache-2.0
"""`python -m thinwire device-report`: trains on the device that torch finds, compares with the
CPU bit by bit, and measures copies and steps."""

from __future__ import annotations

import logging
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import __version__

_NO_DEVICE = "torch finds no device beside the CPU, so there is nothing to report"
STEPS = 20
RANKS = 2
_ADAM = {"optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}
_ZERO = {"zero_optimization": {"stage": 2, "reduce_bucket_size": 5000}}
_PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True}},
}
_FREEZE: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "Lamb": {},
    "OneBitAdam": {"freeze_step": 6},
    "OneBitLamb": {"freeze_step": 6},
    "ZeroOneAdam": {"var_freeze_step": 8, "local_step_scaler": 4},
}


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
        """Returns all parameters, on the CPU."""
        flat = [
            part.detach().to("cpu", torch.float32).reshape(-1) for part in self.parts
        ]
        return torch.cat(flat)


def run_device_report(file: str, params: int = 25_000_000) -> int:
    """Writes the report to `file` and prints it; 1 unless all results are those of the CPU.

    Starts two ranks, which share the device if there is only one. `params` is the size of the
    model of which a step is measured.
    """
    # Fork before the device is in use, which a child could not share.
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(rank, folder, params))
            for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        found = Path(folder, "report")
        lines = found.read_text().splitlines() if found.exists() else []
        errors = [path.read_text() for path in sorted(Path(folder).glob("error.*"))]
    failed = [line for line in lines if line.endswith("| differs")]
    ended = all(process.exitcode == 0 for process in ranks)
    verdict = "all results are those of the CPU"
    if failed or errors or not ended:
        verdict = (
            f"{len(failed)} results differ from the CPU's, {len(errors)} ranks failed"
        )
    text = "\n".join([*lines, *errors, f"verdict | {verdict}", ""])
    Path(file).write_text(text)
    asks = (
        ""
        if any(_NO_DEVICE in error for error in errors)
        else ": please send it in an issue"
    )
    print(f"{text}written to {file}{asks}")
    return 0 if verdict.startswith("all") else 1


def _rank(rank: int, folder: str, params: int) -> None:
    """Runs one rank in a process of its own."""
    code = 1
    try:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // RANKS))
        logging.getLogger("thinwire").setLevel(logging.ERROR)
        torch.manual_seed(rank)
        store = dist.FileStore(f"{folder}/store", RANKS)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        lines: list[str] = []
        for line in _lines(rank, folder, params):
            lines.append(line)
            if rank == 0:
                Path(folder, "report").write_text("\n".join(lines))
        code = 0
    except BaseException as error:  # noqa: BLE001  the report names it
        text = f"rank {rank} | {type(error).__name__}: {error}"
        Path(folder, f"error.{rank}").write_text(text[:2000])
    # If the program ends right after a backward on a device, torch itself sometimes
    # aborts.
    os._exit(code)


def _lines(rank: int, folder: str, params: int) -> Iterator[str]:
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        raise RuntimeError(_NO_DEVICE)
    count = torch.accelerator.device_count()
    device = torch.device(found.type, rank % count)
    torch.accelerator.set_device_index(device.index)
    module = torch.get_device_module(device)
    name = getattr(module, "get_device_name", lambda _: found.type)(device.index)
    yield f"device | {name}, {count} of kind {found.type}"
    versions = {
        "CUDA": torch.version.cuda,
        "HIP": torch.version.hip,
        "XPU": getattr(torch.version, "xpu", None),
    }
    known = [f"{what} {version}" for what, version in versions.items() if version]
    named = ", ".join([f"thinwire {__version__}", f"torch {torch.__version__}", *known])
    yield f"versions | {named}"
    threads = os.environ.get("THINWIRE_NUM_THREADS", "1")
    yield f"python | {platform.python_version()}, {threads} threads per rank"
    for case, config in _configurations():
        yield f"{case} | {_verdict(partial(_engine, config, rank), device)}"
    for kind in ("AdamW", "OnebitAdam", "ZeroOneAdam"):
        yield f"{kind} in a plain loop | {_verdict(partial(_plain, kind, rank), device)}"
    for first, second in (("device", "cpu"), ("cpu", "device")):
        places = {"cpu": torch.device("cpu"), "device": device}
        same = torch.equal(
            _resumed(f"{folder}/{first}", rank, places[first], places[second]),
            _resumed(f"{folder}/{first}-cpu", rank, places["cpu"], places["cpu"]),
        )
        yield f"saved on {first}, resumed on {second} | {'same bits' if same else 'differs'}"
    yield from _measured(device, params)


def _configurations() -> Iterator[tuple[str, dict[str, Any]]]:
    for kind, options in _FREEZE.items():
        for precision, section in _PRECISIONS.items():
            optimizer = {"type": kind, "params": {"lr": 0.01, **options}}
            yield f"{kind} {precision}", {"optimizer": optimizer, **section}
    for precision, section in _PRECISIONS.items():
        yield f"ZeRO-2 {precision}", {**_ADAM, **_ZERO, **section}
    yield "accumulation fp32", {**_ADAM, "gradient_accumulation_steps": 2}
    sharded = {**_ADAM, **_ZERO, **_PRECISIONS["bf16"]}
    yield "ZeRO-2 bf16 accumulation", {**sharded, "gradient_accumulation_steps": 2}
    yield (
        "ZeRO-2 bf16 over 4 bits",
        {
            **sharded,
            "thinwire": {"zero_bits_up": 4, "zero_bits_down": 4},
        },
    )
    onebit = {"type": "OneBitAdam", "params": {"lr": 0.01, "freeze_step": 6}}
    lean = {"optimizer": onebit, "thinwire": {"lean": True}, **_PRECISIONS["bf16"]}
    yield "lean bf16", lean


def _verdict(run: Callable[[torch.device], torch.Tensor], device: torch.device) -> str:
    same = torch.equal(run(torch.device("cpu")), run(device))
    return "same bits" if same else "differs"


def _engine(config: dict[str, Any], rank: int, where: torch.device) -> torch.Tensor:
    """Returns the parameters after some steps."""
    from .engine import initialize

    model = Elementwise().to(where)
    engine, *_ = initialize(model=model, config=config)
    for step in range(STEPS * engine.gradient_accumulation_steps()):
        engine.backward(engine(rank, step))
        engine.step()
    with engine.evaluation():
        values = model.values()
    engine.destroy()
    return values


def _plain(kind: str, rank: int, where: torch.device) -> torch.Tensor:
    """Returns the parameters after some steps."""
    from . import optim

    freeze = {"OnebitAdam": {"freeze_step": 6}, "ZeroOneAdam": {"var_freeze_step": 8}}
    model = Elementwise().to(where, torch.bfloat16)
    made = getattr(optim, kind)
    optimizer = made(model.parameters(), lr=0.01, **freeze.get(kind, {}))
    for step in range(STEPS):
        model(rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    with optimizer.evaluation():
        values = model.values()
    optimizer.close()
    return values


def _resumed(
    folder: str, rank: int, first: torch.device, second: torch.device
) -> torch.Tensor:
    """Returns the parameters after steps on `first`, a checkpoint, and steps on `second`."""
    from .engine import initialize

    config = {**_ADAM, **_ZERO, **_PRECISIONS["bf16"]}
    model = Elementwise().to(first)
    engine, *_ = initialize(model=model, config=config)
    for step in range(5):
        engine.backward(engine(rank, step))
        engine.step()
    engine.save_checkpoint(folder)
    engine.destroy()
    model = Elementwise().to(second)
    engine, *_ = initialize(model=model, config=config)
    engine.load_checkpoint(folder)
    for step in range(5, 10):
        engine.backward(engine(rank, step))
        engine.step()
    engine.destroy()
    return model.values()


def _measured(device: torch.device, params: int) -> Iterator[str]:
    """Times of rank 0, while both ranks work."""
    yield from _copies(device, params)
    here, other = torch.zeros(params), torch.ones(params)
    passes = 3 * here.nbytes / 1e9 / _best(lambda: here.add_(other))
    yield f"host memory, a pass of additions | {passes:.1f} GB/s"
    yield _step(device, params)


def _best(action: Callable[[], object]) -> float:
    """Returns the seconds of the fastest of five calls."""
    seconds = []
    for _ in range(5):
        torch.accelerator.synchronize()
        begin = time.perf_counter()
        action()
        torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def copies_gbps() -> float:
    """Returns the rate of copies from pinned memory to the device that torch finds, or 0
    if it finds none or pins no memory."""
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        return 0.0
    there = torch.zeros(16 << 20, device=device)
    try:
        here = torch.zeros(there.numel(), pin_memory=True)
    except RuntimeError:
        return 0.0
    return here.nbytes / 1e9 / _best(partial(there.copy_, here, non_blocking=True))


def _copies(device: torch.device, params: int) -> Iterator[str]:
    there = torch.zeros(params, device=device)
    for what, pin in (("pinned", True), ("pageable", False)):
        try:
            here = torch.zeros(params, pin_memory=pin)
        except RuntimeError as error:
            yield f"{what} copies | refused: {str(error).splitlines()[0]:.200}"
            continue
        up, down = (
            here.nbytes / 1e9 / _best(partial(to.copy_, of, non_blocking=True))
            for to, of in ((there, here), (here, there))
        )
        yield f"{what} copies | {up:.2f} GB/s to the device, {down:.2f} GB/s to the host"


def _step(device: torch.device, params: int) -> str:
    from .engine import initialize

    width = 1024
    layers = max(1, params // (width * width))
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)]).to(device)
    config = {
        "optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-4, "freeze_step": 1}},
        **_PRECISIONS["bf16"],
    }
    engine, *_ = initialize(model=model, config=config)
    x = torch.randn(8, width, device=device, dtype=torch.bfloat16)

    def forward() -> torch.Tensor:
        loss: torch.Tensor = engine(x).float().square().mean()
        return loss

    def step() -> None:
        engine.backward(forward())
        engine.step()

    step()
    step()
    whole, alone = _best(step), _best(forward)
    engine.destroy()
    return (
        f"1-bit Adam, bf16, {layers * width * width} elements | {1e3 * whole:.1f} ms a step, "
        f"{1e3 * alone:.1f} ms of it forward"
    )

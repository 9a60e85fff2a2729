# SPDX-License-Identifier: Apache-2.0
"""Trains small models on the device that torch finds and on the CPU, with two ranks, compares
the results bit by bit, and measures copies and a step.

Writes a file that can be sent in an issue. It names the device, its driver and versions, and
nothing else of the machine. Needs an installed wheel, and takes at most ten minutes.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from device_uses import (
    USES,
    Elementwise,
    Use,
    engine_of,
    take_steps,
    used_by_engine,
    used_by_optimizer,
)
from thinwire import Error, __version__, optim
from thinwire._staging import best_time, first_line
from thinwire.errors import InvalidArgument
from torch import nn

_NO_DEVICE = "torch finds no device beside the CPU, so there is nothing to report"
LIMIT = 600.0
"""Seconds of a report."""
LAST_PART = 0.2
"""Share of the limit that is kept for the last part that begins."""
STEPS = 20
RANKS = 2
_WIDTH = 1024
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


@dataclass(frozen=True)
class Place:
    """The rank, device and folder on which the parts of a report run."""

    rank: int
    device: torch.device
    folder: str
    params: int


Part = Callable[[Place], str]
"""Runs on all ranks, and returns what the report says on rank 0."""


def run_device_report(file: str, params: int = 25_000_000, limit: float = LIMIT) -> int:
    """Writes the report to `file` and prints it; 1 unless all results are those of the CPU.

    Starts two ranks, which share the device if there is only one. `params` is the size of the
    model of which a step is measured. After `limit` seconds both ranks have ended. The report
    names the parts for which there was no time.

    Raises InvalidArgument at once if the file cannot be written, params is below 1, or limit
    is not above 0.
    """
    if params < 1:
        raise InvalidArgument(f"--params: must be >= 1, got {params}")
    if not limit > 0:
        raise InvalidArgument(f"limit: must be > 0 seconds, got {limit}")
    try:
        Path(file).open("a").close()
    except OSError as error:
        raise InvalidArgument(
            f"--file: must be a file that can be written, got {file!r}: {error.strerror}"
        ) from None
    # Fork before the device is in use, which a child could not share.
    context = multiprocessing.get_context("fork")
    end = time.monotonic() + limit
    last_start = end - LAST_PART * limit
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(rank, folder, params, last_start))
            for rank in range(RANKS)
        ]
        try:
            for process in ranks:
                process.start()
            for process in ranks:
                process.join(max(0.0, end - time.monotonic()))
            failed = [k for k, p in enumerate(ranks) if p.exitcode not in (None, 0)]
        finally:
            for process in ranks:
                process.kill()
            for process in ranks:
                process.join()
        found = Path(folder, "report")
        lines = found.read_text().splitlines() if found.exists() else []
        paths = [Path(folder, f"error.{rank}") for rank in failed]
        errors = [path.read_text() for path in paths if path.exists()]
    if any(_NO_DEVICE in error for error in errors):
        text = f"verdict | {_NO_DEVICE}\n"
        Path(file).write_text(text)
        print(f"{text}written to {file}")
        return 1
    differing = [line for line in lines if " | differs" in line]
    done = {line.split(" | ")[0] for line in lines}
    left_out = [name for name in _parts(params) if name not in done]
    why = "a rank failed" if failed else f"it did not fit in {limit:.0f} seconds"
    verdict = "all results are those of the CPU"
    if differing or failed:
        verdict = (
            f"{len(differing)} results are not as they should be, {len(failed)} ranks "
            "failed"
        )
    elif left_out:
        verdict += f", {len(left_out)} parts are left out"
    lines += [f"{name} | left out: {why}" for name in left_out]
    text = "\n".join([*lines, *errors, f"verdict | {verdict}", ""])
    Path(file).write_text(text)
    print(f"{text}written to {file}: please send it in an issue")
    return 0 if verdict.startswith("all") else 1


def _rank(rank: int, folder: str, params: int, last_start: float) -> None:
    """Runs one rank in a process of its own, which ends with its parent."""
    code = 1
    # A signal to the whole group is the parent's affair, which also removes the folder.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{folder}/inductor")
    try:
        found = torch.accelerator.current_accelerator(check_available=True)
        if found is None:
            raise RuntimeError(_NO_DEVICE)
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // RANKS))
        logging.getLogger("thinwire").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
        torch.manual_seed(rank)
        store = dist.FileStore(f"{folder}/store", RANKS)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        lines: list[str] = []
        for line in _lines(found, rank, folder, params, last_start):
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


def _end_with_parent(folder: str) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _lines(
    found: torch.device, rank: int, folder: str, params: int, last_start: float
) -> Iterator[str]:
    count = torch.accelerator.device_count()
    device = torch.device(found.type, rank % count)
    torch.accelerator.set_device_index(device.index)
    module = torch.get_device_module(device)
    name = getattr(module, "get_device_name", lambda _: found.type)(device.index)
    yield f"device | {name}, {count} of kind {found.type}"
    yield f"driver | {driver_of(device) or 'torch does not name it'}"
    yield f"versions | {_versions(device)}"
    threads = os.environ.get("THINWIRE_NUM_THREADS", "1")
    yield f"python | {platform.python_version()}, {threads} threads per rank"
    place = Place(rank, device, folder, params)
    for name, part in _parts(params).items():
        is_late = torch.tensor(int(time.monotonic() > last_start))
        dist.broadcast(is_late, 0)
        if is_late:
            return
        yield f"{name} | {part(place)}"


def _versions(device: torch.device) -> str:
    known: dict[str, str | None] = {
        "thinwire": __version__,
        "torch": torch.__version__,
        "CUDA": torch.version.cuda,
        "HIP": torch.version.hip,
        "XPU": getattr(torch.version, "xpu", None),
    }
    with suppress(metadata.PackageNotFoundError):  # such as torch_npu
        known[f"torch_{device.type}"] = metadata.version(f"torch_{device.type}")
    return ", ".join(f"{what} {version}" for what, version in known.items() if version)


def driver_of(device: torch.device) -> str:
    """Returns name and version of the driver, as far as torch tells them."""
    if device.type == "cuda" and torch.version.cuda:
        from torch.utils import collect_env

        version = collect_env.get_nvidia_driver_version(collect_env.run)
        number: int = getattr(torch._C, "_cuda_getDriverVersion")()  # noqa: B009
        runs = f"runs CUDA {number // 1000}.{number % 1000 // 10}"
        return f"NVIDIA {version}, {runs}" if version else f"NVIDIA, {runs}"
    module = torch.get_device_module(device)
    properties = getattr(module, "get_device_properties", lambda _: None)(device.index)
    version = getattr(properties, "driver_version", "")
    return f"{device.type} {version}" if version else ""


def _parts(params: int) -> dict[str, Part]:
    parts: dict[str, Part] = {
        case: partial(_same, partial(_engine, config))
        for case, config in _configurations()
    }
    for kind in ("AdamW", "OnebitAdam", "ZeroOneAdam"):
        parts[f"{kind} in a plain loop"] = partial(_same, partial(_plain, kind))
    for ends in (("device", "cpu"), ("cpu", "device")):
        parts[f"saved on {ends[0]}, resumed on {ends[1]}"] = partial(_resumes, *ends)
    for case, config in _COUNTED.items():
        parts[f"per step: {case}"] = _counted(config)
    parts["per step: a plain loop"] = lambda at: used_by_optimizer(at.rank, at.device)
    parts["pinned copies"] = partial(_copies, True)
    parts["pageable copies"] = partial(_copies, False)
    parts["host memory, a pass of additions"] = _passes
    layers = max(1, params // (_WIDTH * _WIDTH))
    elements = layers * _WIDTH * _WIDTH
    parts[f"1-bit Adam, bf16, {elements} elements"] = partial(_step, layers)
    for case, use in USES.items():
        parts[case] = partial(_same_or_error, use)
    return parts


_COUNTED: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "accumulation": {"gradient_accumulation_steps": 3},
    "ZeRO-2": _ZERO,
    "bf16": _PRECISIONS["bf16"],
}


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
    four = {"zero_bits_up": 4, "zero_bits_down": 4}
    yield "ZeRO-2 bf16 over 4 bits", {**sharded, "thinwire": four}
    onebit = {"type": "OneBitAdam", "params": {"lr": 0.01, "freeze_step": 6}}
    lean = {"optimizer": onebit, "thinwire": {"lean": True}, **_PRECISIONS["bf16"]}
    yield "lean bf16", lean


def _counted(config: dict[str, Any]) -> Part:
    return lambda at: used_by_engine(config, at.rank, at.device)


def _same(run: Use, place: Place) -> str:
    on_cpu = run(place.rank, torch.device("cpu"))
    same = torch.equal(on_cpu, run(place.rank, place.device))
    return "same bits" if same else "differs"


def _same_or_error(run: Use, place: Place) -> str:
    try:
        return _same(run, place)
    except (RuntimeError, NotImplementedError) as error:
        return f"differs: {first_line(error)}"


def _resumes(first: str, second: str, place: Place) -> str:
    places = {"cpu": torch.device("cpu"), "device": place.device}
    folder = f"{place.folder}/{first}"
    found = _resumed(folder, place.rank, places[first], places[second])
    on_cpu = _resumed(f"{folder}-cpu", place.rank, places["cpu"], places["cpu"])
    return "same bits" if torch.equal(found, on_cpu) else "differs"


def _engine(config: dict[str, Any], rank: int, where: torch.device) -> torch.Tensor:
    model = Elementwise().to(where)
    with engine_of(model, config) as engine:
        steps = STEPS * engine.gradient_accumulation_steps()
        take_steps(engine, partial(engine, rank), range(steps))
        with engine.evaluation():
            return model.values()


def _plain(kind: str, rank: int, where: torch.device) -> torch.Tensor:
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


def _resumed(folder: str, rank: int, *places: torch.device) -> torch.Tensor:
    """Returns the parameters after steps on both places, with a checkpoint between."""
    config = {**_ADAM, **_ZERO, **_PRECISIONS["bf16"]}
    for number, where in enumerate(places):
        model = Elementwise().to(where)
        with engine_of(model, config) as engine:
            if number > 0:
                engine.load_checkpoint(folder)
            take_steps(engine, partial(engine, rank), range(5 * number, 5 * number + 5))
            if number == 0:
                engine.save_checkpoint(folder)
    return model.values()


def _passes(place: Place) -> str:
    here, other = torch.zeros(place.params), torch.ones(place.params)
    return f"{3 * here.nbytes / 1e9 / best_time(lambda: here.add_(other)):.1f} GB/s"


def _copies(pin: bool, place: Place) -> str:
    there = torch.zeros(place.params, device=place.device)
    try:
        here = torch.zeros(place.params, pin_memory=pin)
    except RuntimeError as error:
        return f"refused: {first_line(error)}"
    up, down = (
        here.nbytes / 1e9 / best_time(partial(to.copy_, of, non_blocking=True))
        for to, of in ((there, here), (here, there))
    )
    return f"{up:.2f} GB/s to the device, {down:.2f} GB/s to the host"


def _step(layers: int, place: Place) -> str:
    linear = [nn.Linear(_WIDTH, _WIDTH) for _ in range(layers)]
    model = nn.Sequential(*linear).to(place.device)
    onebit = {"type": "OneBitAdam", "params": {"lr": 1e-4, "freeze_step": 1}}
    with engine_of(model, {"optimizer": onebit, **_PRECISIONS["bf16"]}) as engine:
        x = torch.randn(8, _WIDTH, device=place.device, dtype=torch.bfloat16)

        def forward(_: int = 0) -> torch.Tensor:
            loss: torch.Tensor = engine(x).float().square().mean()
            return loss

        take_steps(engine, forward, range(2))
        whole = best_time(lambda: take_steps(engine, forward, range(1)))
        alone = best_time(forward)
    return f"{1e3 * whole:.1f} ms a step, {1e3 * alone:.1f} ms of it forward"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--file",
        default="thinwire-device-report.txt",
        help="where the report goes (default: %(default)s)",
    )
    parser.add_argument(
        "--params",
        type=int,
        default=25_000_000,
        help="parameters of the measured model",
    )
    arguments = parser.parse_args()
    try:
        return run_device_report(arguments.file, arguments.params)
    except Error as error:
        print(f"device_report: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

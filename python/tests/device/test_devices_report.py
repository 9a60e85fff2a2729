# SPDX-License-Identifier: Apache-2.0
"""The program device_report.py."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import device_report
import devices
import pytest
import ranks
import thinwire
import torch
from device_report import run_device_report
from thinwire.__main__ import main


def report(file: str, limit: float = device_report.LIMIT) -> int:
    if (
        devices.IS_FENCE
    ):  # the ranks of the report are forked, and others cannot be shared
        devices.device()
    return run_device_report(file, params=1_100_000, limit=limit)


def lines_of(file: Path) -> dict[str, str]:
    return dict(line.split(" | ", 1) for line in file.read_text().splitlines())


def test_it_compares_with_the_cpu_and_measures(tmp_path: Path) -> None:
    file = tmp_path / "report.txt"
    assert devices.run(1, __file__, "report", str(file)) == [0]
    lines = lines_of(file)
    assert lines["verdict"] == "all results are those of the CPU"
    assert devices.NAME in lines["device"] and torch.__version__ in lines["versions"]
    assert sum(text == "same bits" for text in lines.values()) == 37
    counted = [text for name, text in lines.items() if name.startswith("per step: ")]
    assert len(counted) == 5
    if devices.IS_FENCE:
        found = {text.split(" ", 1)[1] for text in counted}
        quiet = "waits of the host, 0 synchronous copies, 0 more bytes on the device"
        assert found == {quiet}, counted
    assert lines["pinned copies"].endswith("GB/s to the host")
    assert " ms a step" in lines["1-bit Adam, bf16, 1048576 elements"]


def broken(file: str) -> int:
    """A report of a device on which a use fails, another one has other bits, and a step keeps
    memory and waits."""
    import device_uses

    def fails(rank: int, where: torch.device) -> torch.Tensor:
        raise NotImplementedError("no such thing")

    def differs(rank: int, where: torch.device) -> torch.Tensor:
        return torch.ones(1) if where.type == "cpu" else torch.zeros(1)

    kept = []

    def step() -> None:
        kept.append(torch.ones(16, device=devices.device()))
        kept[-1].sum().item()
        kept[-1].sum().item()
        torch.empty(16).copy_(kept[-1], non_blocking=True)

    device_report._parts = lambda params: {  # type: ignore[assignment]
        "fails": partial(device_report._same_or_error, fails),
        "other bits": partial(device_report._same_or_error, differs),
        "per step": lambda place: device_uses._used(step, place.device),
    }
    return report(file)


def test_it_says_what_differs(tmp_path: Path) -> None:
    file = tmp_path / "report.txt"
    assert devices.run(1, __file__, "broken", str(file)) == [1]
    lines = lines_of(file)
    assert lines["fails"] == "differs: no such thing"
    assert lines["other bits"] == "differs"
    assert lines["per step"].startswith("differs: ")
    if devices.IS_FENCE:
        used = "3.00 waits of the host, 6 synchronous copies, 3072 more bytes"
        assert used in lines["per step"]
    assert lines["verdict"] == "3 results are not as they should be, 0 ranks failed"


def endless(file: str) -> int:
    device_report._parts = lambda params: {  # type: ignore[assignment]
        "first": lambda place: "done",
        "endless": lambda place: str(time.sleep(60)),
        "last": lambda place: "done",
    }
    return report(file, limit=4)


@pytest.mark.parametrize("case", ["late", "endless"])
def test_what_does_not_fit_into_its_time_is_left_out_by_name(
    case: str, tmp_path: Path
) -> None:
    file = tmp_path / "report.txt"
    began = time.monotonic()
    if case == "late":  # the first parts take longer than this
        assert devices.run(1, __file__, "report", str(file), 5) == [0]
    else:
        assert devices.run(1, __file__, "endless", str(file)) == [0]
    assert time.monotonic() - began < 30
    lines = lines_of(file)
    left_out = [name for name, text in lines.items() if text.startswith("left out")]
    assert left_out[-1] == ("last" if case == "endless" else "torch.compile, aot_eager")
    assert "device" in lines and "device" not in left_out
    said = f"all results are those of the CPU, {len(left_out)} parts are left out"
    assert lines["verdict"] == said
    if case == "endless":
        assert lines["first"] == "done"
        assert left_out == ["endless", "last"]


def killed(file: str) -> None:
    """Ends itself once its ranks run, by the signal that is the file's name. The ranks write
    their numbers beside it."""

    def end(place: device_report.Place) -> str:
        Path(f"{file}.{place.rank}").write_text(str(os.getpid()))
        torch.distributed.barrier()
        if place.rank == 0:
            os.kill(os.getppid(), signal.Signals[Path(file).name])
        return str(time.sleep(60))

    device_report._parts = lambda params: {"end": end}  # type: ignore[assignment]
    tempfile.tempdir = str(Path(file).parent)
    # A shell starts programs in the background without it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    report(file)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_its_ranks_and_files_end_with_it(name: str, tmp_path: Path) -> None:
    devices.require()
    began = time.monotonic()
    (rank,) = ranks.call(1, __file__, "killed", str(tmp_path / name))
    assert rank.returncode != 0
    numbers = [int(Path(tmp_path, f"{name}.{k}").read_text()) for k in range(2)]
    while any(map(is_alive, numbers)) or any(
        path.is_dir() for path in tmp_path.iterdir()
    ):
        assert time.monotonic() - began < 30
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    """Whether it runs; one that has ended may wait for its parent to ask."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("file", "options", "said"),
    [
        ("missing/report.txt", {}, "--file: must be a file that can be written, got '"),
        ("report.txt", {"params": 0}, "--params: must be >= 1, got 0"),
        ("report.txt", {"limit": -1}, "limit: must be > 0"),
    ],
)
def test_it_refuses_what_it_could_not_end_with(
    file: str, options: dict[str, int], said: str, tmp_path: Path
) -> None:
    with pytest.raises(thinwire.errors.InvalidArgument, match=re.escape(said)):
        run_device_report(str(tmp_path / file), **options)
    assert not (tmp_path / file).exists()


def test_it_names_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        driver_version = "1.6.31294"

    class Module:
        @staticmethod
        def get_device_properties(index: int) -> Properties:
            return Properties()

    monkeypatch.setattr(torch, "get_device_module", lambda device: Module)
    device = torch.device("xpu", 0)
    assert device_report.driver_of(device) == "xpu 1.6.31294"
    from torch.utils import collect_env

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(
        torch._C, "_cuda_getDriverVersion", lambda: 13010, raising=False
    )
    found: list[str | None] = ["580.159.04", None]
    monkeypatch.setattr(
        collect_env, "get_nvidia_driver_version", lambda run: found.pop(0)
    )
    device = torch.device("cuda", 0)
    assert device_report.driver_of(device) == "NVIDIA 580.159.04, runs CUDA 13.1"
    assert device_report.driver_of(device) == "NVIDIA, runs CUDA 13.1"


def planned() -> str:
    devices.device()
    sys.argv[1:] = ["plan", "--params", "1e6", "--threads", "0", "--ranks", "2"]
    sys.argv += ["--link-gbps", "1"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main() == 0
    return out.getvalue()


def test_the_planner_measures_copies_to_the_device() -> None:
    (text,) = devices.run(1, __file__, "planned")
    assert re.search(r"a model on a device: .*; parameters return in .* GB/s\n", text)


def without_a_device(file: str) -> int:
    return run_device_report(file)


@pytest.mark.skipif(not devices.IS_FENCE, reason="a device is there")
def test_without_a_device_it_says_so(tmp_path: Path) -> None:
    file = tmp_path / "report.txt"
    (rank,) = ranks.succeed(ranks.call(1, __file__, "without_a_device", str(file)))
    assert rank.value == 1
    (line,) = file.read_text().splitlines()
    assert line.startswith("verdict | torch finds no device beside the CPU")
    assert "nothing to report" in rank.stdout and "issue" not in rank.stdout

# SPDX-License-Identifier: Apache-2.0
"""`python -m thinwire device-report`."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from functools import partial
from pathlib import Path

import devices
import pytest
import ranks
import thinwire
import torch
from thinwire import _device_report
from thinwire.__main__ import main
from thinwire._device_report import run_device_report


def report(file: str) -> int:
    """The report, and two uses: of a device on which one fails, and one has other bits."""
    if devices.IS_FENCE:  # the report forks its ranks, and others cannot be shared
        devices.device()

    def fails(rank: int, where: torch.device) -> torch.Tensor:
        raise NotImplementedError("no such thing")

    def differs(rank: int, where: torch.device) -> torch.Tensor:
        return torch.ones(1) if where.type == "cpu" else torch.zeros(1)

    usual, told = _device_report._parts, _device_report._same_or_error
    more = {"fails": partial(told, fails), "other bits": partial(told, differs)}
    _device_report._parts = lambda params: usual(params) | more
    return run_device_report(file, params=1_100_000)


def test_it_compares_with_the_cpu_and_measures(tmp_path: Path) -> None:
    file = tmp_path / "report.txt"
    assert devices.run(1, __file__, "report", str(file)) == [1]
    lines = dict(line.split(" | ", 1) for line in file.read_text().splitlines())
    assert lines["fails"] == "differs: no such thing"
    assert lines["other bits"] == "differs"
    assert lines["verdict"] == "2 results are not as they should be, 0 ranks failed"
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

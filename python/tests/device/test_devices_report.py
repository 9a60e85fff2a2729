# SPDX-License-Identifier: Apache-2.0
"""`python -m thinwire device-report`."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import devices
import pytest
import ranks
import torch
from thinwire.__main__ import main
from thinwire._device_report import run_device_report


def report(file: str) -> int:
    if (
        devices.IS_FENCE
    ):  # the ranks of the report are forked, and others cannot be shared
        devices.device()
    return run_device_report(file, params=1_100_000)


def test_it_compares_with_the_cpu_and_measures(tmp_path: Path) -> None:
    file = tmp_path / "report.txt"
    assert devices.run(1, __file__, "report", str(file)) == [0]
    lines = dict(line.split(" | ", 1) for line in file.read_text().splitlines())
    assert lines["verdict"] == "all results are those of the CPU"
    assert devices.NAME in lines["device"] and torch.__version__ in lines["versions"]
    assert sum(text == "same bits" for text in lines.values()) == 27
    assert lines["pinned copies"].endswith("GB/s to the host")
    assert " ms a step" in lines["1-bit Adam, bf16, 1048576 elements"]


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
    assert "torch finds no device beside the CPU" in file.read_text()
    assert "nothing to report" in rank.stdout and "issue" not in rank.stdout

# SPDX-License-Identifier: Apache-2.0
"""The script that checks a GPU, on the CPU: it ends in time, and notices other bits."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import hook_cases
import pytest
import ranks
import torch
from thinwire.hooks import _codec

SCRIPT = Path(__file__).resolve().parents[3] / "tests/device/gpu_check.py"
pytestmark = pytest.mark.quick


@hook_cases.needs_fsdp
def test_the_check_passes_on_the_cpu() -> None:
    arguments = "--device", "cpu", "--elements", 1 << 16
    done = ranks.program(sys.executable, SCRIPT, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["figure"] for one in said} == {
        "machine",
        *("codec bits", "encode", "decode", "ddp_hook", "fsdp_hook", "end"),
    }
    assert all(one.get("same", True) for one in said)


def test_the_check_notices_other_bits(capsys: pytest.CaptureFixture[str]) -> None:
    check = runpy.run_path(str(SCRIPT))["codec_bits"]
    encode, calls = _codec.encode, []

    def other(c: torch.Tensor, bits: int) -> Any:
        """The last bit of one record is another on every second call."""
        records, error = encode(c, bits)
        calls.append(bits)
        records[0, -1] ^= len(calls) % 2
        return records, error

    assert check(torch.device("cpu"))
    with mock.patch.object(_codec, "encode", other):
        assert not check(torch.device("cpu"))
    assert '"same": false, "differ": ["records"' in capsys.readouterr().out

# SPDX-License-Identifier: Apache-2.0
"""What documents and `doctor` say of devices comes from one list of runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from thinwire import _devices
from thinwire._devices import FEATURES, RUNS, Run

pytestmark = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[3]
OTHER = Run("Some GPU", "2026-11-25", "a" * 40, ("test_devices_use.py",))


def test_the_guide_has_the_table() -> None:
    guide = (ROOT / "docs/guide/devices.md").read_text()
    found = re.search(
        r"<!-- devices: begin -->\n(.*)\n<!-- devices: end -->", guide, re.DOTALL
    )
    assert found and found[1] == _devices.table(), _devices.table()


def test_the_guide_has_the_computed_times() -> None:
    table = runpy.run_path(str(ROOT / "bench/devices/table.py"))["table"]()
    guide = (ROOT / "docs/guide/devices.md").read_text()
    found = re.search(
        r"<!-- costs: begin -->\n(.*)\n<!-- costs: end -->", guide, re.DOTALL
    )
    assert found and found[1] == table, table


def test_the_readme_has_the_line() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert _devices.in_short() in readme, _devices.in_short()


def test_tested_files_are_there() -> None:
    for _, file in FEATURES:
        assert (ROOT / "python/tests/device" / file).is_file(), file


def test_a_run_says_where_when_and_what() -> None:
    for run in (*RUNS, OTHER):
        assert run.device and run.files
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", run.date), run
        assert re.fullmatch(r"[0-9a-f]{40}", run.commit), run
        assert set(run.files) <= {file for _, file in FEATURES}, run


def test_a_run_on_a_device_changes_the_label_of_what_it_ran() -> None:
    ran = "test device; ran on Some GPU, 2026-11-25, aaaaaaaaaa"
    assert _devices.label("test_devices_use.py", (OTHER,)) == ran
    assert _devices.label("test_devices_bits.py", (OTHER,)) == "test device"
    assert _devices.in_short((OTHER,)).endswith("and run on Some GPU")
    assert "never run" in _devices.in_short(())

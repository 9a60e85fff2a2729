# SPDX-License-Identifier: Apache-2.0
"""What documents and `doctor` say of devices comes from one list of runs."""

from __future__ import annotations

import os
import re
import runpy
from dataclasses import replace
from pathlib import Path

import devices
import pytest
from thinwire import _devices
from thinwire._devices import FEATURES, RUNS, Run

ROOT = Path(__file__).resolve().parents[3]
OTHER = Run("Some GPU", "2026-11-25", "a" * 40, ("test_devices_use.py",))


@pytest.mark.quick
def test_documents_have_the_tables() -> None:
    costs = runpy.run_path(str(ROOT / "bench/devices/table.py"))["table"]()
    guide = (ROOT / "docs/guide/devices.md").read_text()
    for name, table in (("devices", _devices.table()), ("costs", costs)):
        between = rf"<!-- {name}: begin -->\n(.*)\n<!-- {name}: end -->"
        found = re.search(between, guide, re.DOTALL)
        assert found and found[1] == table, table
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert _devices.in_short() in readme, _devices.in_short()


def test_a_step_sends_the_computed_bytes() -> None:
    parts = runpy.run_path(str(ROOT / "bench/devices/table.py"))["parts"]
    *rows, said = parts(1 << 20, 20.0, 10.0).splitlines()[2:]
    # Two ranks with 24.5 bytes of passes per parameter, and with 4 that are copied, which
    # are read and written.
    computed = [row.split(" | ")[:3] for row in rows]
    assert computed == [
        ["| host passes", "51", "2.6"],
        ["| copies", "17", "1.7"],
        ["| exchange", "1", "0.1"],
    ]
    assert said.startswith("The ranks send 0.27 MB as computed, 0.27 MB as counted.")


@pytest.mark.quick
def test_runs_name_files_of_the_features() -> None:
    files = {file for _, file in FEATURES}
    for file in files:
        assert (ROOT / "python/tests/device" / file).is_file(), file
    for run in RUNS:
        assert run.files and set(run.files) <= files, run


@pytest.mark.quick
@pytest.mark.parametrize("missing", ["device", "date", "commit"])
def test_a_run_without_device_date_or_commit_is_no_label(missing: str) -> None:
    for value in ("", "x" if missing != "device" else " "):
        with pytest.raises(ValueError, match=f"{missing}: must match"):
            replace(OTHER, **{missing: value})


@pytest.mark.quick
def test_both_programs_say_what_the_table_says() -> None:
    source = (ROOT / "src/commands/doctor.cpp").read_text()
    (text,) = re.findall(r'kDevicesTested =\s+"(.*)";', source)
    assert text == _devices.label_of_all()
    some = f"test device; 2 of {len(FEATURES)} features also ran on Some GPU"
    assert _devices.label_of_all((OTHER,)) == some


def in_doctor() -> dict[str, str]:
    from thinwire import _doctor

    devices.device()
    os.sched_getaffinity = lambda _: set(range(6))
    return dict(_doctor.lines(""))


@pytest.mark.skipif(not devices.IS_FENCE, reason="it takes the memory away")
def test_doctor_says_whether_pinned_memory_works() -> None:
    (found,) = devices.run(1, __file__, "in_doctor")
    kind = "4 of kind fence, pinned memory"
    assert found["devices"] == f"{kind}; 6 threads for the leader of a host"
    (found,) = devices.run(1, __file__, "in_doctor", THINWIRE_NUM_THREADS="3")
    assert found["devices"] == kind  # another line has the variable
    (found,) = devices.run(1, __file__, "in_doctor", FENCE_WITHOUT_PINNED="1")
    assert "copies are synchronous, and so slower" in found["devices"]
    assert "no pinned memory" in found["devices"]


@pytest.mark.quick
def test_a_run_on_a_device_changes_the_labels_of_its_features() -> None:
    ran = "test device; ran on Some GPU, 2026-11-25, aaaaaaaaaa"
    assert _devices.label("test_devices_use.py", (OTHER,)) == ran
    assert _devices.label("test_devices_bits.py", (OTHER,)) == "test device"

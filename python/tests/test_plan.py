# SPDX-License-Identifier: Apache-2.0
"""`python -m thinwire plan` and `config check`: the commands of the program `thinwire`, whose
tests are in tests/apps."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import ranks

DESCRIBED = ("--ranks", "2", "--link-gbps", "0.1")


def run(*arguments: str, code: int = 0) -> str:
    done = ranks.program(sys.executable, "-m", "thinwire", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def plan(*flags: str, code: int = 0) -> str:
    return run("plan", "--params", "300001", *flags, code=code)


@pytest.mark.quick
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_results_that_cannot_be_written_are_an_error() -> None:
    command = [sys.executable, "-m", "thinwire", "plan", "--params", "3001", *DESCRIBED]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith(
        "python -m thinwire: the results could not be written to stdout: No space left"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.quick
def test_a_model_on_a_device_is_planned_with_its_way_through_the_host() -> None:
    (line,) = [
        line
        for line in plan(*DESCRIBED, "--dtype", "bf16", "--threads", "0").splitlines()
        if line.startswith("a model on a device: ")
    ]
    found = re.search(r"costs ([0-9.e+-]+) ms per step .* at ([0-9.]+) GB/s", line)
    assert found and line.endswith("copies to a device were not measured")
    wanted = 300001 * 28.5 / float(found[2]) * 1e-6
    assert float(found[1]) == pytest.approx(wanted, rel=0.02)
    assert "a model on a device" not in plan(*DESCRIBED)


def plan_of_a_rank() -> tuple[str, str]:
    return plan(), plan(*DESCRIBED, code=2)


def test_ranks_of_a_process_group_measure_their_network() -> None:
    (printed, refused), second = ranks.results(2, __file__, "plan_of_a_rank")
    assert printed.startswith("without --forward-ms")
    assert "measured: 2 ranks; link of each" in printed
    assert printed.splitlines()[-1].startswith("fastest: ")
    assert second[0] == ""
    assert "under a launcher the network is measured" in refused


@pytest.mark.quick
def test_a_configuration_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"steps_per_print": 10}')
    assert "supported  steps_per_print = 10\n" in run("config", "check", str(file))
    file.write_text('{"steps_per_print": 0}')
    assert "1 rejected" in run("config", "check", str(file), code=1)

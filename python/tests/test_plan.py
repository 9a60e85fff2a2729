# SPDX-License-Identifier: Apache-2.0
"""`python -m thinwire plan` on one process, of a network that is described."""

import json
import subprocess
import sys

import pytest

DESCRIBED = ("--params", "300001", "--ranks", "2", "--link-gbps", "0.1")

pytestmark = pytest.mark.quick


def plan(*flags: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "thinwire", "plan", *DESCRIBED, *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def test_a_run_is_predicted_whole_and_ways_are_in_its_order() -> None:
    *ways, last = map(json.loads, plan("--steps", "500", "--json").splitlines())
    seconds = [way["run_seconds"] for way in ways]
    assert seconds == sorted(seconds)
    assert last["fastest"] == ways[0]["way"]
    steps = {way["way"]: way["run_steps"] for way in ways}
    assert steps["onebit_adam"] == {"exact": 100, "compressed": 400, "local": 0}
    assert steps["exact"] == {"exact": 500, "compressed": 0, "local": 0}
    text = plan("--steps", "500", "--freeze-step", "60")
    assert "onebit_adam: 60 steps of the run are exact, 440 compressed" in text
    assert text.splitlines()[-1].endswith(" for 500 steps")


def test_each_measured_figure_has_its_spread() -> None:
    (line,) = (x for x in plan().splitlines() if x.startswith("ns per element: "))
    figures = line.removeprefix("ns per element: ").split(", ")
    assert all(figure.endswith(" %)") for figure in figures), line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--steps", "0"), "--steps: must be in [1, 100000000], got 0"),
        (("--steps", "2.5"), "--steps: must be in [1, 100000000], got 2.5"),
        (("--freeze-step", "5"), "--freeze-step: it needs --steps"),
        (
            ("--steps", "300", "--freeze-step", "301"),
            "--freeze-step: must be at most --steps 300",
        ),
    ],
)
def test_runs_out_of_range_are_refused(flags: tuple[str, ...], said: str) -> None:
    assert said in plan(*flags, code=2)

# SPDX-License-Identifier: Apache-2.0
"""What bench/network/run does inside of its namespaces: all that is measured.

Prints progress to stderr; leaves results.json in the folder it is given.
"""

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path

from links import GOODPUT, Links
from programs import Failure, Program, run_to_its_end

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "release"

RATES = (100, 1000, 10_000)  # Mbit/s
LARGE = {"layers": 8, "width": 256, "batch": 1}  # of the steps
SMALL = {"layers": 4, "width": 128, "batch": 16}  # the demo's, of the whole runs
CONTEXT = 64
# As long as Thinwire's; torch's own are 10 % slower at 1 Gbit/s. The small model
# has torch's, of which its first is smaller.
DDP_BUCKET_MB = 4

DENSE = ("ddp_fp32", "ddp_bf16", "adam")
COMPRESSED = (
    "ddp_powersgd1",
    "ddp_powersgd4",
    "onebit_adam",
    "onebit_lamb",
    "zero_one_adam",
    "python_onebit_adam",
)
ALL = (*DENSE, *COMPRESSED)
OF_A_RUN = ("ddp_fp32", "adam", "onebit_adam")
# Until every one is in the stage that is measured.
WARM_STEPS = {"zero_one_adam": 16}
WARM_STEPS_OF_OTHERS = 6
RUN_STEPS, FREEZE_STEP = 500, 100


def steps_of(variant, mbit):
    """In a row; whole turns of 0/1 Adam's sync and three local steps."""
    dense = variant in DENSE
    return {100: 2 if dense else 8, 1000: 4 if dense else 16}.get(mbit, 16)


def say(text):
    print(text, file=sys.stderr, flush=True)


def owner(variant):
    return "python" if variant.startswith(("ddp", "python")) else "thinwire"


class Bench:
    def __init__(self, given):
        self.given = given
        self.scratch = given.out / "logs"
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.rounds = []

    def sizes(self, model):
        return [str(model[name]) for name in ("layers", "width", "batch")]

    def programs(self, links, model):
        arguments = [*self.sizes(model), *self.given.text]
        commands = {
            "thinwire": [str(BUILD / "bin" / "network_steps"), str(self.scratch)],
            "python": [
                self.given.python,
                str(HERE / "ddp.py"),
                "--control",
                str(self.scratch),
            ],
        }
        if model is LARGE:
            commands["python"] += ["--bucket-mb", str(DDP_BUCKET_MB)]
        return {
            name: Program(name, links.hosts, [*command, *arguments], self.scratch)
            for name, command in commands.items()
        }

    def steps(self, links, name, model, plan):
        """Rounds of a plan {rate: variants}, every round all of them."""
        programs = self.programs(links, model)
        variants = list(dict.fromkeys(v for of_rate in plan.values() for v in of_rate))
        links.set_rate(None)
        for variant in ("computing", *variants):
            warm = WARM_STEPS.get(variant, WARM_STEPS_OF_OTHERS)
            programs[owner(variant)].ask(variant, warm)
        for number in range(self.given.rounds):
            begin = time.monotonic()
            links.set_rate(None)
            self.ask(links, programs, "computing", 16, None, name, number)
            for mbit, of_rate in plan.items():
                links.set_rate(mbit)
                turn = number % len(of_rate)
                for variant in of_rate[turn:] + of_rate[:turn]:
                    count = steps_of(variant, mbit)
                    self.ask(links, programs, variant, count, mbit, name, number)
            say(f"{name}: round {number + 1}: {time.monotonic() - begin:.0f} s")
        for program in programs.values():
            program.close()

    def ask(self, links, programs, variant, steps, mbit, name, number):
        before = links.sent_bytes(0)
        answer = programs[owner(variant)].ask(variant, steps)
        if variant in COMPRESSED and "exact" in answer.get("phases", {}):
            raise Failure(f"{variant}: an exact step: {answer['phases']}")
        answer["bytes"] = (links.sent_bytes(0) - before) / steps
        answer.update(set=name, ranks=links.hosts, mbit=mbit, round=number)
        self.rounds.append(answer)

    def whole_runs(self, links):
        """Exact Adam by DDP and 1-bit Adam by train_gpt, the demo's model."""
        links.set_rate(RATES[0])
        runs = {}
        sizes = [f"--{name}={value}" for name, value in SMALL.items()]
        commands = {
            "onebit_adam": [
                str(BUILD / "bin" / "train_gpt"),
                "--optimizer=onebit_adam",
                f"--freeze-step={FREEZE_STEP}",
                *sizes,
                "--quiet",
                "--data",
                *self.given.text,
            ],
            "ddp_fp32": [
                self.given.python,
                str(HERE / "ddp.py"),
                *self.sizes(SMALL),
                *self.given.text,
            ],
        }
        for name, command in commands.items():
            begin = time.monotonic()
            folder = self.scratch / name
            run_to_its_end(
                links.hosts,
                [*command, f"--steps={RUN_STEPS}", f"--out={folder}"],
                self.scratch / f"{name}_run.log",
            )
            wall = time.monotonic() - begin
            say(f"{name}: {RUN_STEPS} steps: {wall:.0f} s")
            lines = (folder / "metrics.jsonl").read_text().splitlines()
            runs[name] = {"wall_seconds": wall, "metrics": [*map(json.loads, lines)]}
        return runs

    def run(self):
        links = Links(self.given.hosts)
        pair = OnSome(links, 2)
        runs = {}
        self.steps(pair, "steps", LARGE, dict.fromkeys(RATES, ALL))
        if not self.given.quick:
            if links.hosts > 2:
                self.steps(links, "steps", LARGE, {1000: ALL})
            self.steps(pair, "runs", SMALL, dict.fromkeys(RATES, OF_A_RUN))
            runs = self.whole_runs(pair)
        return {**machine(), "rounds": self.rounds, "runs": runs}


class OnSome:
    """The first of all hosts."""

    def __init__(self, links, hosts):
        self.hosts = hosts
        self.set_rate = links.set_rate
        self.sent_bytes = links.sent_bytes


def machine():
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "processor": names[0] if names else os.uname().machine,
        "cores": os.cpu_count(),
        "goodput": GOODPUT,
        "context": CONTEXT,
        "models": {"steps": LARGE, "runs": SMALL},
        "run": {"steps": RUN_STEPS, "freeze_step": FREEZE_STEP, "mbit": RATES[0]},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probe", action="store_true", help="make links, and end")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--python", default=sys.executable, help="one with torch")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--text", nargs="+", default=[])
    given = parser.parse_args()
    try:
        if given.probe:
            Links(2).set_rate(RATES[0])
            return 0
        results = Bench(given).run()
    except (Failure, OSError) as failure:
        print(f"run: {failure}", file=sys.stderr)
        return 1
    results["quick"] = given.quick
    (given.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Measures everything for bench/network/run, which starts it in its namespaces.

Prints progress to stderr and writes results.json to the given folder.
"""

import argparse
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

from links import GOODPUT, Links, Place
from programs import Failure, Program, run_to_its_end
from variants import (
    ALL,
    BY_HOST,
    COMPUTING,
    FLAT,
    OF_A_RUN,
    ON_HOSTS,
    is_compressed,
    must_be_compressed,
    owner,
    steps_of,
    told,
    warm_steps,
)

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "release"

RATES = (100, 1000, 10_000)  # Mbit/s
LARGE = {"layers": 8, "width": 256, "batch": 1}  # model of the steps
SMALL = {"layers": 4, "width": 128, "batch": 16}  # the demo's model, for the whole runs
CONTEXT = 64
# Buckets are as long as Thinwire's; torch's own are 10 % slower at 1 Gbit/s. The small
# model has torch's default, whose first bucket is smaller.
DDP_BUCKET_MB = 4

RUN_STEPS, FREEZE_STEP = 500, 100
RUN_LENGTHS = (300, 3_000, 30_000)  # steps of runs that are computed from single steps
# 0/1 Adam syncs as in the measured steps.
PLAN_CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "ZeroOneAdam", "params": {"local_step_clipper": 4}},
}


def say(text):
    print(text, file=sys.stderr, flush=True)


class Bench:
    def __init__(self, given):
        self.given = given
        self.scratch = given.out / "logs"
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.rounds, self.runs, self.plans, self.schedules = [], {}, [], {}

    def write(self):
        """Writes all that is complete so far, so that an early end loses nothing."""
        results = {"rounds": self.rounds, "runs": self.runs, "plans": self.plans}
        results["schedules"] = self.schedules
        text = json.dumps({**machine(), **results}, indent=1)
        (self.given.out / "results.json").write_text(text + "\n")

    def sizes(self, model):
        return [str(model[name]) for name in ("layers", "width", "batch")]

    def commands(self, model):
        arguments = [*self.sizes(model), *self.given.text]
        thinwire = [str(BUILD / "bin" / "network_steps"), str(self.scratch)]
        python = [self.given.python, str(HERE / "ddp.py")]
        python += ["--control", str(self.scratch)]
        if model is LARGE:
            python += ["--bucket-mb", str(DDP_BUCKET_MB)]
        return {"thinwire": thinwire + arguments, "python": python + arguments}

    def steps(self, place, name, model, plan):
        """Runs rounds of a plan {rate: variants}, every round all of them. Computing
        alone, and the computing of what is compressed, also run without a limit."""
        variants = list(dict.fromkeys(v for of_rate in plan.values() for v in of_rate))
        alone = [COMPUTING, *filter(is_compressed, variants)]
        owners = {owner(variant) for variant in alone + variants}
        programs = {
            name: Program(name, place, command, self.scratch)
            for name, command in self.commands(model).items()
            if name in owners
        }
        place.links.set_rate(None)
        for variant in dict.fromkeys([COMPUTING, *variants]):
            programs[owner(variant)].ask(told(variant), warm_steps(variant))
        for number in range(self.given.rounds):
            begin = time.monotonic()
            for mbit, of_rate in {None: alone, **plan}.items():
                place.links.set_rate(mbit)
                turn = number % len(of_rate)
                for variant in of_rate[turn:] + of_rate[:turn]:
                    program = programs[owner(variant)]
                    answer = self.ask(place, program, variant, steps_of(variant, mbit))
                    answer.update(set=name, mbit=mbit, round=number)
            self.write()
            say(f"{name}: round {number + 1}: {time.monotonic() - begin:.0f} s")
        for program in programs.values():
            program.close()

    def ask(self, place, program, variant, steps):
        before = place.links.sent_bytes(0)
        answer = program.ask(told(variant), steps)
        if must_be_compressed(variant) and "exact" in answer.get("phases", {}):
            raise Failure(f"{variant}: an exact step: {answer['phases']}")
        answer["bytes"] = (place.links.sent_bytes(0) - before) / steps
        answer.update(variant=variant, ranks=place.ranks)
        answer["ranks_per_host"] = place.ranks_per_host
        self.rounds.append(answer)
        return answer

    def whole_runs(self, place):
        """Runs exact Adam by DDP and 1-bit Adam by train_gpt, on the demo's model."""
        place.links.set_rate(RATES[0])
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
                place,
                [*command, f"--steps={RUN_STEPS}", f"--out={folder}"],
                self.scratch / f"{name}_run.log",
            )
            wall = time.monotonic() - begin
            say(f"{name}: {RUN_STEPS} steps: {wall:.0f} s")
            lines = (folder / "metrics.jsonl").read_text().splitlines()
            runs[name] = {"wall_seconds": wall, "metrics": [*map(json.loads, lines)]}
        return runs

    def planned(self, place):
        """Runs `thinwire plan` for each link, with forward and backward as they were
        measured in turns with the steps on that link."""
        config = self.scratch / "plan.json"
        config.write_text(json.dumps(PLAN_CONFIG))
        found = []
        for mbit in RATES:
            computing = [
                entry
                for entry in self.rounds
                if (entry["variant"], entry["mbit"]) == (COMPUTING, mbit)
            ]
            seconds = statistics.median(
                entry["seconds"] - entry["update"] for entry in computing
            )
            place.links.set_rate(mbit)
            flags = ["--compute-ms", f"{seconds * 1e3:.3f}", "--config", str(config)]
            ways = self.plan(place, computing[0]["params"], flags)
            found.append({"mbit": mbit, "ways": ways})
            say(f"plan at {mbit} Mbit/s")
        return found

    def plan(self, place, params, flags):
        """Returns its lines."""
        log = self.scratch / "plan.log"
        command = [str(BUILD / "bin" / "thinwire"), "plan", "--json"]
        run_to_its_end(place, [*command, "--params", str(params), *flags], log)
        lines = [line for line in log.read_text().splitlines() if line[:1] == "{"]
        return [*map(json.loads, lines)]

    def schedules_of_runs(self, place):
        """Returns how many steps of which kind each way takes in a run of each
        length."""
        place.links.set_rate(None)
        return {
            length: {
                way["way"]: way["run_steps"]
                for way in self.plan(place, 1e6, ["--steps", str(length)])
                if "way" in way
            }
            for length in RUN_LENGTHS
        }

    def run(self):
        links = Links(self.given.hosts)
        pair = Place(links, 2)
        variants = [v for v in ALL if re.search(self.given.only, v)]
        if "steps" in self.given.sets:
            on_each = [COMPUTING, *variants]
            self.steps(pair, "steps", LARGE, dict.fromkeys(RATES, on_each))
            self.plans = self.planned(pair)
            self.schedules = self.schedules_of_runs(pair)
            if links.hosts > 2:
                many = Place(links, links.hosts)
                self.steps(many, "steps", LARGE, {1000: variants})
        if "hosts" in self.given.sets:
            on_hosts = [
                v + where
                for v in ON_HOSTS
                if re.search(self.given.only, v)
                for where in (FLAT, BY_HOST)
            ]
            self.steps(Place(links, 2, 2), "hosts", LARGE, {RATES[0]: on_hosts})
        if "runs" in self.given.sets:
            self.steps(pair, "runs", SMALL, dict.fromkeys(RATES, OF_A_RUN))
            self.runs = self.whole_runs(pair)
        self.write()


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
    parser.add_argument("--probe", action="store_true", help="make links and exit")
    parser.add_argument("--sets", nargs="+", default=[])
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument(
        "--python", default=sys.executable, help="Python that has torch"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--text", nargs="+", default=[])
    given = parser.parse_args()
    try:
        if given.probe:
            Links(2).set_rate(RATES[0])
            return 0
        Bench(given).run()
    except (Failure, OSError) as failure:
        print(f"run: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

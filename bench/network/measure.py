# SPDX-License-Identifier: Apache-2.0
"""Measures everything for bench/network/run, which starts it in its namespaces.

Prints progress to stderr and writes results.json to the given folder.
"""

import argparse
import json
import math
import os
import re
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from links import GOODPUT, Links, Place
from losses import add_size
from programs import Failure, Program, run_to_its_end
from training import BUILD, DDP_BUCKET_MB, MAIN, Recipe, Setting, train
from variants import (
    ALL,
    BY_HOST,
    COMPUTING,
    FLAT,
    IN_FULL,
    OF_A_SLOW_RUN,
    ON_HOSTS,
    PEER,
    SEEDS,
    is_compressed,
    must_be_compressed,
    owner,
    steps_of,
    told,
    warm_steps,
)

HERE = Path(__file__).resolve().parent

RATES = [25, 100, 1000, 10_000]  # Mbit/s
CONTEXT = 64
FULL_RATE = 100
SLOW_RATE, SLOW_STEPS = 25, 1000
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
        # Sets that are not measured now keep the results of an earlier run.
        path = given.out / "results.json"
        kept = json.loads(path.read_text()) if path.exists() else {}
        self.rounds = [r for r in kept.get("rounds", []) if r["set"] not in given.sets]
        self.plans = [] if "steps" in given.sets else kept.get("plans", [])
        self.full_runs = [] if "full" in given.sets else kept.get("full_runs", [])
        self.slow_runs = [] if "slow" in given.sets else kept.get("slow_runs", [])
        self.setting = Setting(given.model, sequences=given.sequences)

    def write(self):
        """Writes all that is complete so far, so that an early end loses nothing."""
        results = {"model": self.setting.model, "batch": self.setting.sequences}
        results |= {"rounds": self.rounds, "plans": self.plans}
        results |= {"full_runs": self.full_runs, "slow_runs": self.slow_runs}
        text = json.dumps({**machine(), **results}, indent=1)
        (self.given.out / "results.json").write_text(text + "\n")

    def commands(self):
        arguments = [*self.setting.sizes(), *self.given.text]
        thinwire = [str(BUILD / "bin" / "network_steps"), str(self.scratch)]
        python = [self.given.python, str(HERE / "ddp.py")]
        python += ["--control", str(self.scratch), "--bucket-mb", str(DDP_BUCKET_MB)]
        return {"thinwire": thinwire + arguments, "python": python + arguments}

    def steps(self, place, name, plan):
        """Runs rounds of a plan {rate: variants}, with all variants in every round.
        Computing alone, and the computing of compressed variants, also run without a
        limit.
        """
        variants = list(dict.fromkeys(v for of_rate in plan.values() for v in of_rate))
        alone = [COMPUTING, *filter(is_compressed, variants)]
        owners = {owner(variant) for variant in alone + variants}
        programs = {
            name: Program(name, place, command, self.scratch)
            for name, command in self.commands().items()
            if name in owners
        }
        place.set_rate(None)
        for variant in dict.fromkeys([COMPUTING, *variants]):
            programs[owner(variant)].ask(told(variant), warm_steps(variant))
        for number in range(self.given.rounds):
            begin = time.monotonic()
            for mbit, of_rate in {None: alone, **plan}.items():
                place.set_rate(mbit)
                turn = number % len(of_rate)
                for variant in of_rate[turn:] + of_rate[:turn]:
                    program = programs[owner(variant)]
                    steps = steps_of(variant, mbit, place.ranks)
                    answer = self.ask(place, program, variant, steps)
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

    def whole_runs(self, place, variants, setting, mbit):
        """Makes runs in full over a slow link, all but the peer's until they reach its
        loss."""
        place.set_rate(mbit)
        recipe = Recipe(setting, self.given.python, self.scratch, self.given.text)
        until = math.inf
        for variant in variants:
            run = train(place, recipe, variant, SEEDS[0], until)
            if variant == PEER:
                until = run["losses"][-1][1]
            yield {**run, "mbit": mbit}

    def keep(self, to, runs):
        for run in runs:
            to.append(run)
            self.write()

    def planned(self, place):
        """Runs `thinwire plan` for each link, with forward and backward as they were
        measured in turns with the steps on that link."""
        config = self.scratch / "plan.json"
        config.write_text(json.dumps(PLAN_CONFIG))
        found = []
        for mbit in self.given.rates:
            computing = [
                entry
                for entry in self.rounds
                if (entry["variant"], entry["mbit"]) == (COMPUTING, mbit)
            ]
            seconds = statistics.median(
                entry["seconds"] - entry["update"] for entry in computing
            )
            place.set_rate(mbit)
            flags = ["--compute-ms", f"{seconds * 1e3:.3f}", "--config", str(config)]
            flags += ["--steps", str(self.setting.steps), "--warmup-bits", "8"]
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

    def chosen(self, variants):
        return [v for v in variants if re.search(self.given.only, v)]

    def side_by_side(self, variants):
        """Returns lists of the ways that take turns. Memory has room for only one way
        of a larger model."""
        is_main = self.setting.model == MAIN.model
        return [variants] if is_main else [[variant] for variant in variants]

    def run(self):
        links = Links(4)
        pair = Place(links, range(2))
        variants = self.chosen(ALL)
        if "steps" in self.given.sets:
            for together in self.side_by_side(variants):
                on_each = {mbit: [COMPUTING, *together] for mbit in self.given.rates}
                self.steps(pair, "steps", on_each)
            self.plans = self.planned(pair)
            if self.given.hosts > 2:
                many = Place(links, range(self.given.hosts))
                self.steps(many, "steps", {1000: variants})
        if "hosts" in self.given.sets:
            on_hosts = [
                v + where for v in self.chosen(ON_HOSTS) for where in (FLAT, BY_HOST)
            ]
            self.steps(Place(links, range(2), 2), "hosts", {100: on_hosts})
        if "full" in self.given.sets:
            ways = self.chosen(IN_FULL)
            runs = self.whole_runs(pair, ways, self.setting, FULL_RATE)
            self.keep(self.full_runs, runs)
        if "slow" in self.given.sets:
            ways = self.chosen(OF_A_SLOW_RUN)
            longer = replace(self.setting, steps=SLOW_STEPS)
            runs = self.whole_runs(pair, ways, longer, SLOW_RATE)
            self.keep(self.slow_runs, runs)
        self.write()


def machine():
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "processor": names[0] if names else os.uname().machine,
        "cores": os.cpu_count(),
        "goodput": GOODPUT,
        "context": CONTEXT,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probe", action="store_true", help="make links and exit")
    parser.add_argument("--sets", nargs="+", default=[])
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rates", nargs="+", type=int, default=RATES)
    add_size(parser)
    parser.add_argument(
        "--python", default=sys.executable, help="Python that has torch"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--text", nargs="+", default=[])
    given = parser.parse_args()
    try:
        if given.probe:
            Links(2).set_rate(RATES[0], range(2))
            return 0
        Bench(given).run()
    except (Failure, OSError) as failure:
        print(f"run: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

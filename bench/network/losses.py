# SPDX-License-Identifier: Apache-2.0
"""Makes whole runs for their losses, which do not depend on the link.

They run beside each other on this machine, without root. Runs that OUT/losses.json has
already are kept, unless the way's options have changed since. bench/network/run calls it.
"""

import argparse
import hashlib
import json
import math
import os
import re
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from programs import Failure, Here, free_port
from training import Recipe, Setting, train
from variants import OF_A_RUN, PEER, SEEDS, WAYS, run_flags


def fingerprint(variant):
    """Returns a text that changes with the options of a way."""
    way = WAYS[variant]
    options = [run_flags(variant), way.first_steps]
    return hashlib.sha256(repr(options).encode()).hexdigest()[:12]


class Losses:
    def __init__(self, given, scratch):
        self.given = given
        self.path = given.out / "losses.json"
        self.setting = setting_of(given)
        self.recipe = Recipe(self.setting, given.python, scratch, given.text)
        self.runs = json.loads(self.path.read_text()) if self.path.exists() else []
        self.writing = threading.Lock()
        self.failed = []

    def kept(self, variant, seed):
        """Returns the run if it is there."""
        for run in self.runs:
            if (run["variant"], run["seed"]) == (variant, seed) and self.setting.of(
                run
            ):
                return run if run["way"] == fingerprint(variant) else None
        return None

    def keep(self, run):
        """Adds a run in place of an earlier one."""
        with self.writing:
            own = (run["variant"], run["seed"])
            self.runs = [
                r
                for r in self.runs
                if (r["variant"], r["seed"]) != own or not self.setting.of(r)
            ]
            self.runs.append(run)
            lines = ",\n".join(map(json.dumps, self.runs))
            new = self.path.with_suffix(".new")
            new.write_text(f"[\n{lines}\n]\n")
            new.rename(self.path)

    def make(self, variant, seed, until):
        if self.kept(variant, seed):
            return
        try:
            place = Here(self.given.ranks)
            run = train(place, self.recipe, variant, seed, until, free_port())
        except Failure as failure:
            self.failed.append(variant)
            print(f"run: {variant}, seed {seed}: {failure}", file=sys.stderr)
            return
        del run["seconds"]
        self.keep({**run, "way": fingerprint(variant)})

    def make_all(self):
        """Makes the peer's runs first, because others continue until its loss."""
        seeds = self.given.seeds or SEEDS
        ways = [v for v in OF_A_RUN if re.search(self.given.only, v)]
        with ThreadPoolExecutor(self.given.jobs) as pool:
            list(pool.map(lambda seed: self.make(PEER, seed, math.inf), seeds))
            todo = [
                (variant, seed)
                for seed in seeds
                for variant in ways
                if self.given.seeds or WAYS[variant].is_shown or seed == SEEDS[0]
            ]
            list(pool.map(lambda one: self.make(*one, self.target(one[1])), todo))

    def target(self, seed):
        run = self.kept(PEER, seed)
        if run is None:
            raise Failure(f"{PEER}, seed {seed}: without it no run has a target")
        return next(loss for step, loss, _ in run["losses"] if step == run["steps"])


def setting_of(given):
    return Setting(given.model, given.ranks, given.sequences, given.steps)


def model_from(text):
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not LAYERSxWIDTH")
    return text


def at_least_one(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return int(text)


def add_options(parser):
    """Adds the options that bench/network/run passes on."""
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=at_least_one,
        default=[],
        help="of runs for losses; default: 1 2 3 for rows of the picture, 1 for others",
    )
    main = Setting()
    parser.add_argument("--ranks", type=at_least_one, default=main.ranks, help="theirs")
    parser.add_argument("--steps", type=at_least_one, default=main.steps, help="theirs")
    parser.add_argument("--jobs", type=at_least_one, help="runs beside each other")
    add_size(parser)


def add_size(parser):
    """Adds the options that runs for losses and measured steps share."""
    main = Setting()
    parser.add_argument("--model", type=model_from, default=main.model)
    parser.add_argument(
        "--sequences",
        type=at_least_one,
        default=main.sequences,
        help="per rank and step",
    )


def passed_on(given):
    """Returns these options as arguments."""
    arguments = ["--ranks", str(given.ranks), "--steps", str(given.steps)]
    if given.seeds:
        arguments += ["--seeds", *map(str, given.seeds)]
    return arguments + (["--jobs", str(given.jobs)] if given.jobs else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--text", nargs="+", required=True)
    given = parser.parse_args()
    given.jobs = given.jobs or max(1, os.cpu_count() // given.ranks)
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="thinwire_losses_") as scratch:
        losses = Losses(given, Path(scratch))
        try:
            losses.make_all()
        except (Failure, OSError) as failure:
            print(f"run: {failure}", file=sys.stderr)
            return 1
    return 1 if losses.failed else 0


if __name__ == "__main__":
    sys.exit(main())

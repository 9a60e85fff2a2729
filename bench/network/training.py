# SPDX-License-Identifier: Apache-2.0
"""One whole run of a way, by train_gpt or ddp.py, until it reaches a loss."""

import json
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

from programs import run_to_its_end
from variants import (
    STEPS,
    VALIDATE_EVERY,
    VALIDATION_BYTES,
    WAYS,
    longest,
    owner,
    run_flags,
)

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "release"

# Buckets are as long as Thinwire's; torch's own are 10 % slower at 1 Gbit/s.
DDP_BUCKET_MB = 4


@dataclass(frozen=True)
class Setting:
    """The size of the job, which all ways share. The model is LAYERSxWIDTH."""

    model: str = "8x256"
    ranks: int = 2
    sequences: int = 1  # per rank and step
    steps: int = STEPS  # of a whole run

    def sizes(self):
        return [*self.model.split("x"), str(self.sequences)]

    def of(self, run):
        return all(run[name] == value for name, value in asdict(self).items())

    def __str__(self):
        many = "" if self.sequences == 1 else "s"
        return f"{self.model}, {self.ranks} ranks, {self.sequences} sequence{many}"


MAIN = Setting()  # where times are measured by default


@dataclass(frozen=True)
class Recipe:
    setting: Setting
    python: str  # that has torch and thinwire
    scratch: Path
    text: list


def train(place, recipe, variant, seed, until, port=29_400):
    """Makes a run, which continues at its last learning rate if it ends above the loss
    `until`. Losses are (step, loss on held-out text, bytes sent until then)."""
    folder = recipe.scratch / f"{variant}_{seed}_{port}"
    shutil.rmtree(folder, ignore_errors=True)
    begin = time.monotonic()
    for command in commands(recipe, variant, until):
        command += ["--seed", str(seed), "--out", str(folder), *own(recipe, variant)]
        run_to_its_end(place, command, recipe.scratch / f"{folder.name}.log", port)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        metrics = [*map(json.loads, lines)]
        losses = [(e["step"], e["val_loss"]) for e in metrics if "val_loss" in e]
        if min(loss for _, loss in losses) <= until:
            break
    shutil.rmtree(folder, ignore_errors=True)
    of_step = [entry for entry in metrics if "phase" in entry]
    sent = [0, *accumulate(entry["bytes_sent"] for entry in of_step)]
    wall = time.monotonic() - begin
    last, loss = losses[-1]
    text = f"{recipe.setting}: {variant}, seed {seed}, {last} steps: {loss:.4f}"
    print(f"{text}, {sent[-1] / 1e6:.0f} MB, {wall:.0f} s", file=sys.stderr, flush=True)
    return {
        **asdict(recipe.setting),
        "variant": variant,
        "seed": seed,
        "losses": [(step, loss, sent[step]) for step, loss in losses],
        "kinds": kinds_of(variant, [entry["phase"][0] for entry in of_step]),
        "seconds": [entry["seconds"] for entry in of_step],
    }


def kinds_of(variant, phases):
    """Returns a letter per step. First steps, which are often exact, have an e, local
    ones an l, and others, which exchange in the way's own manner, a c."""
    first = WAYS[variant].first_steps
    if not first:
        return "".join(phases)
    return "e" * first + "".join(phases[first:]).replace("e", "c")


def commands(recipe, variant, until):
    """Returns the command that makes a run, and those that continue it."""
    steps = recipe.setting.steps
    if owner(variant) == "python":
        command = [recipe.python, str(HERE / "ddp.py"), "--way", variant]
        command += ["--bucket-mb", str(DDP_BUCKET_MB), "--until", str(until)]
        return [[*command, "--steps", str(steps)]]
    layers, width, sequences = recipe.setting.sizes()
    command = [str(BUILD / "bin" / "train_gpt"), *run_flags(variant)]
    command += [f"--set=train_gpt.layers={layers}", f"--set=train_gpt.width={width}"]
    command += [f"--set=train_micro_batch_size_per_gpu={sequences}"]
    command += [f"--set=train_gpt.validate_bytes={VALIDATION_BYTES}"]
    command += [f"--set=train_gpt.validate_every={VALIDATE_EVERY}"]
    command += [f"--set=schedule.total_steps={steps}"]
    command += ["--resume", f"--save-every={steps}", "--set=train_gpt.quiet=true"]
    lengths = (steps, steps * 6 // 5, longest(steps))
    return [[*command, f"--steps={length}"] for length in lengths]


def own(recipe, variant):
    """Returns the last arguments of the way's program."""
    if owner(variant) == "python":
        return [*recipe.setting.sizes(), *recipe.text]
    return ["--data", *recipe.text]

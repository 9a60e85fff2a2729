# SPDX-License-Identifier: Apache-2.0
"""Medians over the rounds of results.json, and what follows from them: how long whole
runs take, and how long until a loss is reached."""

import math
import statistics
from dataclasses import dataclass

from variants import (
    BY_HOST,
    COMPRESSED_STEPS,
    COMPUTING,
    EXACT_STEPS,
    FLAT,
    SCHEDULED,
    base,
)

PEER = "ddp_fp32"
TARGET_LOSS = 1.80  # nats per byte of held-out text
MEASURED_INTERVAL = 4  # steps per sync of 0/1 Adam in the steps that are measured


@dataclass(frozen=True)
class Row:
    """Medians over rounds; ratios are formed within each."""

    variant: str
    seconds: float  # per step, of the slowest rank
    bytes: float  # per step, sent by one rank
    speedup: float  # over the peer; nan if there is none
    of_limit: float  # times max(computing, wire)
    computing: float  # seconds on an unlimited link, for low-bit steps
    wire: float  # seconds that the bytes alone take
    parts: dict  # seconds of backward, update and waiting, if known


@dataclass(frozen=True)
class Set:
    """All measurements in turns at one rate with one number of ranks."""

    ranks: int
    ranks_per_host: int
    mbit: int
    rounds: int
    computing: float  # seconds of forward, backward and update alone
    rows: list


@dataclass(frozen=True)
class TimeToLoss:
    variant: str
    steps: float  # interpolated between validations; None if not reached
    exact_steps: float
    seconds: dict  # rate: steps x measured step
    run_seconds: float  # of the run until then, without validation
    wall_seconds: float  # of the whole run, with its start and validations
    final_loss: float


def wire_seconds(results, sent, mbit):
    return sent * 8 / (mbit * 1e6 * results["goodput"])


def sets(results, name):
    """Returns the sets of this name in the order of their measurement."""
    measured = [entry for entry in results["rounds"] if entry["set"] == name]
    keys = dict.fromkeys(
        (e["ranks"], e["ranks_per_host"], e["mbit"]) for e in measured if e["mbit"]
    )
    return [one_set(results, measured, *key) for key in keys]


def one_set(results, measured, ranks, ranks_per_host, mbit):
    own = [
        e
        for e in measured
        if (e["ranks"], e["ranks_per_host"]) == (ranks, ranks_per_host)
        and e["mbit"] in (mbit, None)
    ]
    limited = {(e["variant"], e["round"]): e for e in own if e["mbit"] is not None}
    unlimited = {(e["variant"], e["round"]): e for e in own if e["mbit"] is None}
    rounds = sorted({e["round"] for e in own})

    def median(of_round):
        return statistics.median(of_round(number) for number in rounds)

    def computing(variant, number):
        """Returns the seconds on a link without a limit, or of computing alone if the
        variant was not measured there."""
        alone = unlimited[COMPUTING, number]
        return unlimited.get((variant, number), alone)["seconds"]

    def row(variant):
        def of(part):
            return median(lambda n: limited[variant, n][part])

        def faster(number):
            peer = limited.get((PEER, number), {"seconds": math.nan})
            return peer["seconds"] / limited[variant, number]["seconds"]

        def of_limit(number):
            limit = max(computing(variant, number), wire)
            return limited[variant, number]["seconds"] / limit

        wire = wire_seconds(results, of("bytes"), mbit)
        return Row(
            variant=variant,
            seconds=of("seconds"),
            bytes=of("bytes"),
            speedup=median(faster),
            of_limit=median(of_limit),
            computing=median(lambda n: computing(variant, n)),
            wire=wire,
            parts={
                part: of(part)
                for part in ("backward", "update", "waiting")
                if all(part in limited[variant, n] for n in rounds)
            },
        )

    return Set(
        ranks=ranks,
        ranks_per_host=ranks_per_host,
        mbit=mbit,
        rounds=len(rounds),
        computing=median(lambda n: unlimited[COMPUTING, n]["seconds"]),
        rows=[
            row(variant)
            for variant in dict.fromkeys(v for v, _ in limited)
            if variant != COMPUTING
        ],
    )


def of_flat(results, one, name):
    """Returns the hierarchical variant's seconds over those of the flat one, the median
    over rounds."""
    seconds = {
        (e["variant"], e["round"]): e["seconds"]
        for e in results["rounds"]
        if (e["set"], e["mbit"]) == (name, one.mbit)
    }
    rounds = {number for _, number in seconds}
    return {
        row.variant: statistics.median(
            seconds[row.variant, n] / seconds[base(row.variant) + FLAT, n]
            for n in rounds
        )
        for row in one.rows
        if row.variant.endswith(BY_HOST)
    }


def run_seconds(results, one):
    """Returns {length: {variant: seconds}} of whole runs: their steps, including exact
    ones, times the seconds of a step in this set. Empty if the results have no
    schedules."""
    of_step = {row.variant: row.seconds for row in one.rows}
    return {
        int(length): {
            variant: seconds
            for variant in of_step
            if (seconds := seconds_of_run(int(length), variant, of_step, ways))
        }
        for length, ways in results.get("schedules", {}).items()
    }


def seconds_of_run(length, variant, of_step, ways):
    """Returns the seconds, or None if a step that it needs was not measured."""
    own = of_step[variant]
    if variant not in SCHEDULED:
        return length * own
    steps = ways[SCHEDULED[variant]]
    exact = of_step.get(EXACT_STEPS.get(variant, "adam"))
    compressed = of_step.get(COMPRESSED_STEPS.get(variant, variant))
    if exact is None or compressed is None:
        return None
    if variant != "zero_one_adam":
        return steps["exact"] * exact + steps["compressed"] * compressed
    sync = of_step.get("onebit_adam")
    if sync is None:
        return None
    local = (MEASURED_INTERVAL * own - sync) / (MEASURED_INTERVAL - 1)
    return steps["exact"] * exact + steps["compressed"] * sync + steps["local"] * local


def steps_to(metrics, target):
    """Returns the step at which the line through the validations passes the loss."""
    before = None
    for entry in metrics:
        if "val_loss" not in entry:
            continue
        if entry["val_loss"] <= target:
            if before is None:
                return float(entry["step"])
            share = (before["val_loss"] - target) / (
                before["val_loss"] - entry["val_loss"]
            )
            return before["step"] + share * (entry["step"] - before["step"])
        before = entry
    return None


def times_to_loss(results):
    of_rate = {
        one.mbit: {row.variant: row.seconds for row in one.rows}
        for one in sets(results, "runs")
    }
    times = []
    for variant, run in results["runs"].items():
        steps = steps_to(run["metrics"], TARGET_LOSS)
        until = run["metrics"][-1]["step"] if steps is None else steps
        exact = "ddp_fp32" if variant == "ddp_fp32" else "adam"
        exact_steps = min(until, results["run"]["freeze_step"])
        if variant == exact:
            exact_steps = until
        times.append(
            TimeToLoss(
                variant=variant,
                steps=steps,
                exact_steps=exact_steps,
                seconds={
                    mbit: exact_steps * seconds[exact]
                    + (until - exact_steps) * seconds[variant]
                    for mbit, seconds in of_rate.items()
                },
                run_seconds=sum(
                    entry["seconds"]
                    for entry in run["metrics"]
                    if "seconds" in entry and entry["step"] <= until
                ),
                wall_seconds=run["wall_seconds"],
                final_loss=[
                    entry["val_loss"] for entry in run["metrics"] if "val_loss" in entry
                ][-1],
            )
        )
    return times

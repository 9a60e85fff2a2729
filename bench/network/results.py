# SPDX-License-Identifier: Apache-2.0
"""Medians over the rounds of results.json, and what follows from them: how long runs
take until they reach exact Adam's loss."""

import math
import statistics
from dataclasses import dataclass

from variants import (
    BY_HOST,
    COMPRESSED_STEPS,
    COMPUTING,
    EXACT_STEPS,
    FLAT,
    PEER,
    base,
)

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
    steps: list  # of a row in a round; rows have several numbers
    computing: float  # seconds of forward, backward and update alone
    rows: list


@dataclass(frozen=True)
class RunToLoss:
    """Runs of one way, as means over seeds, until they reach the peer's final loss."""

    variant: str
    seeds: int
    loss: float  # at the end, before a run was continued
    gaps: list  # to the peer's loss there, of each seed
    steps: float | None  # None if a seed does not reach the loss
    bytes: float | None  # sent by a rank until then; None without measured steps
    seconds: dict  # rate: until then
    whole: dict  # rate: of the whole run, before it was continued
    full_seconds: float | None  # as it ran over the slow link, until then


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
        steps=sorted({e["steps"] for e in limited.values()}),
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


def steps_to(losses, target):
    """Returns the step at which the line through (step, loss) passes the target."""
    before = None
    for step, loss in losses:
        if loss <= target:
            if before is None:
                return float(step)
            share = (before[1] - target) / (before[1] - loss)
            return before[0] + share * (step - before[0])
        before = step, loss
    return None


def counts_of(kinds, steps):
    """Returns how many of the first steps are of each kind; the last may be a part."""
    whole = int(steps)
    counts = {kind: kinds[:whole].count(kind) for kind in "ecl"}
    if steps > whole:
        counts[kinds[whole]] += steps - whole
    return counts


def sum_of(variant, counts, of_step):
    """Returns the seconds, or bytes, of steps of these kinds. None if a step that
    they need was not measured."""
    exact = of_step.get(EXACT_STEPS.get(variant, variant))
    compressed = of_step.get(COMPRESSED_STEPS.get(variant, variant))
    own = of_step.get(variant)
    if exact is None or compressed is None or own is None:
        return None
    # A measured step of 0/1 Adam is the mean of a sync and its local steps.
    local = (MEASURED_INTERVAL * own - compressed) / (MEASURED_INTERVAL - 1)
    return counts["e"] * exact + counts["c"] * compressed + counts["l"] * local


def mean(values):
    values = [*values]
    return None if None in values else statistics.fmean(values)


def runs_to_loss(results):
    """Returns a RunToLoss for each way. They take as long as their steps of each kind
    took where these were measured."""
    made = [run for run in results["runs"] if run["mbit"] is None]
    found = [one for one in sets(results, "steps") if one.ranks == 2]
    seconds = {
        one.mbit: {row.variant: row.seconds for row in one.rows} for one in found
    }
    sent = {row.variant: row.bytes for row in found[0].rows} if found else {}
    targets = {run["seed"]: last_loss(run) for run in made if run["variant"] == PEER}
    return [
        run_to_loss(results, variant, targets, seconds, sent)
        for variant in dict.fromkeys(run["variant"] for run in made)
    ]


def last_loss(run):
    """Returns the loss after its last step, before it was continued."""
    return dict(map(tuple, run["losses"]))[run["steps"]]


def run_to_loss(results, variant, targets, seconds, sent):
    own = [run for run in results["runs"] if run["variant"] == variant]
    made = [run for run in own if run["mbit"] is None]
    crossed = [(run, steps_to(run["losses"], targets[run["seed"]])) for run in made]

    def until(of_step):
        return mean(
            None
            if steps is None
            else sum_of(variant, counts_of(run["kinds"], steps), of_step)
            for run, steps in crossed
        )

    def whole(of_step):
        return mean(
            sum_of(variant, counts_of(run["kinds"], run["steps"]), of_step)
            for run in made
        )

    full = [
        sum(run["seconds"][: math.ceil(steps)])
        for run in own
        if run["mbit"] is not None
        and (steps := steps_to(run["losses"], targets[run["seed"]])) is not None
    ]
    return RunToLoss(
        variant=variant,
        seeds=len(made),
        loss=mean(map(last_loss, made)),
        gaps=[last_loss(run) - targets[run["seed"]] for run in made],
        steps=mean(steps for _, steps in crossed),
        bytes=until(sent),
        seconds={mbit: until(of_step) for mbit, of_step in seconds.items()},
        whole={mbit: whole(of_step) for mbit, of_step in seconds.items()},
        full_seconds=full[0] if full else None,
    )

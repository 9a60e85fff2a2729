# SPDX-License-Identifier: Apache-2.0
"""Medians over the rounds of results.json, and what follows from them: how long runs
take until they reach exact Adam's loss."""

import json
import math
import statistics
from dataclasses import dataclass, replace

from training import MAIN, Setting
from variants import BY_HOST, COMPUTING, FLAT, PEER, STEPS, WAYS, base

TURN = 4  # steps per sync of measured steps with local ones


def load(folder):
    """Returns the results in a folder. Missing ones are empty. Raises OSError."""
    steps, losses = folder / "results.json", folder / "losses.json"
    results = {"rounds": [], "plans": [], "losses": []}
    if steps.exists() or not losses.exists():
        results |= json.loads(steps.read_text())
    if losses.exists():
        results["losses"] = json.loads(losses.read_text())
    return results


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
    longest: int  # steps
    loss: float  # at the end, before a run was continued
    gaps: list  # to the peer's loss there, of each seed
    steps: float | None  # None if a seed does not reach the loss
    bytes: float | None  # payload that a rank has sent until then
    seconds: dict  # rate: until then; None without measured steps
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


def crossing(losses, target):
    """Returns the step at which the line through (step, loss, bytes) passes the target,
    and the bytes until then; twice None if it does not."""
    before = (0, math.inf, 0)
    for step, loss, sent in losses:
        if loss <= target:
            share = 1.0
            if before[1] < math.inf:
                share = (before[1] - target) / (before[1] - loss)
            return (
                before[0] + share * (step - before[0]),
                before[2] + share * (sent - before[2]),
            )
        before = step, loss, sent
    return None, None


def counts_of(kinds, steps):
    """Returns how many of the first steps are of each kind; the last may be a part."""
    whole = int(steps)
    counts = {kind: kinds[:whole].count(kind) for kind in "ecl"}
    if steps > whole:
        counts[kinds[whole]] += steps - whole
    return counts


def sum_of(variant, counts, of_step):
    """Returns the seconds of steps of these kinds. None if a step that they need was not
    measured."""
    way = WAYS[variant]
    first = of_step.get(way.first or variant)
    exchange = of_step.get(way.exchange or variant)
    turn = of_step.get(way.turn or variant)
    if first is None or exchange is None or turn is None:
        return None
    local = (TURN * turn - exchange) / (TURN - 1)
    return counts["e"] * first + counts["c"] * exchange + counts["l"] * local


def mean(values):
    values = [*values]
    return None if None in values else statistics.fmean(values)


def settings(results):
    """Returns the settings of runs for losses, the one with measured steps first."""
    found = {
        Setting(r["model"], r["ranks"], r["sequences"], r["steps"])
        for r in results["losses"]
    }
    return sorted(
        found,
        key=lambda one: (replace(one, steps=STEPS) != measured(results), str(one)),
    )


def measured(results):
    """Returns the setting of measured steps."""
    return Setting(results.get("model", MAIN.model), sequences=results.get("batch", 1))


def runs_to_loss(results, setting=MAIN):
    """Returns a RunToLoss for each way. In the setting of measured steps they take as
    long as their steps of each kind took, whatever their number."""
    made = [run for run in results["losses"] if setting.of(run)]
    seconds = {}
    if replace(setting, steps=STEPS) == measured(results):
        seconds = {
            one.mbit: {row.variant: row.seconds for row in one.rows}
            for one in sets(results, "steps")
            if one.ranks == 2
        }
    targets = {run["seed"]: last_loss(run) for run in made if run["variant"] == PEER}
    return [
        run_to_loss(results, variant, made, targets, seconds)
        for variant in dict.fromkeys(run["variant"] for run in made)
    ]


def last_loss(run):
    """Returns the loss after its last step, before it was continued."""
    return next(loss for step, loss, _ in run["losses"] if step == run["steps"])


def run_to_loss(results, variant, made, targets, seconds):
    own = [r for r in made if r["variant"] == variant and r["seed"] in targets]
    crossed = [(run, *crossing(run["losses"], targets[run["seed"]])) for run in own]

    def until(of_step):
        return mean(
            None
            if steps is None
            else sum_of(variant, counts_of(run["kinds"], steps), of_step)
            for run, steps, _ in crossed
        )

    def whole(of_step):
        return mean(
            sum_of(variant, counts_of(run["kinds"], run["steps"]), of_step)
            for run in own
        )

    return RunToLoss(
        variant=variant,
        seeds=len(own),
        longest=max(len(run["kinds"]) for run in own),
        loss=mean(map(last_loss, own)),
        gaps=[last_loss(run) - targets[run["seed"]] for run in own],
        steps=mean(steps for _, steps, _ in crossed),
        bytes=mean(sent for _, _, sent in crossed),
        seconds={mbit: until(of_step) for mbit, of_step in seconds.items()},
        whole={mbit: whole(of_step) for mbit, of_step in seconds.items()},
        full_seconds=full_seconds(results, variant, targets) if seconds else None,
    )


def full_seconds(results, variant, targets):
    """Returns the seconds of the run in full until it reaches the target."""
    for run in results.get("full_runs", []):
        if run["variant"] == variant and run["seed"] in targets:
            steps, _ = crossing(run["losses"], targets[run["seed"]])
            return None if steps is None else sum(run["seconds"][: math.ceil(steps)])
    return None

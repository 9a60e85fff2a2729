# SPDX-License-Identifier: Apache-2.0
"""Reads the runs of a study and pairs each with the one that it is compared with."""

import json
import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds; nan if there is none."""

    values: tuple

    @property
    def mean(self):
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def deviation(self):
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan

    def is_noise(self, most):
        """Returns whether a difference over paired seeds is at most two standard
        errors, and at most `most`. Returns None for fewer than three seeds."""
        if len(self.values) < 3:
            return None
        error = self.deviation / math.sqrt(len(self.values))
        return abs(self.mean) <= min(2 * error, most)


@dataclass(frozen=True)
class Result:
    title: str
    baseline: str  # the row that the gap refers to; empty if there is none
    loss: Spread  # nats per byte of held-out text
    gap: Spread  # to the baseline's run of the same seed
    bytes_sent: float  # per rank, whole run
    saving: float  # bytes of the dense run over its own
    rounds: float  # share of steps that exchange anything


def read_run(folder):
    """Returns loss, bytes and rounds of one run; None if it is missing or not
    complete."""
    summary = folder / "summary.json"
    if not summary.exists():
        return None
    run = json.loads(summary.read_text())
    if "stopped_at" in run:  # a signal stopped it
        return None
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    sent = [row["bytes_sent"] for row in rows if "bytes_sent" in row]
    rounds = sum(1 for count in sent if count > 0) / len(sent)
    return run["final_val_loss"], run["bytes_sent_per_rank"], rounds


def read_results(folder, rows, seeds):
    runs = {
        (row.name, seed): run
        for row in rows
        for seed in seeds
        if (run := read_run(folder / row.name / f"seed_{seed}"))
    }
    titles = {row.name: row.title for row in rows}
    results = []
    for row in rows:
        own = {seed: runs[row.name, seed] for seed in seeds if (row.name, seed) in runs}
        if not own:
            continue
        sent = statistics.fmean(run[1] for run in own.values())
        dense_sent = [
            runs[row.dense, seed][1] for seed in own if (row.dense, seed) in runs
        ]
        results.append(
            Result(
                title=row.title,
                baseline=titles[row.baseline] if row.baseline != row.name else "",
                loss=Spread(tuple(run[0] for run in own.values())),
                gap=Spread(
                    tuple(
                        run[0] - runs[row.baseline, seed][0]
                        for seed, run in own.items()
                        if (row.baseline, seed) in runs
                    )
                ),
                bytes_sent=sent,
                saving=statistics.fmean(dense_sent) / sent
                if dense_sent and sent
                else math.nan,
                rounds=statistics.fmean(run[2] for run in own.values()),
            )
        )
    return results

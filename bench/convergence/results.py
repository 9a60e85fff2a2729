# SPDX-License-Identifier: Apache-2.0
"""Reads the runs of a study back and pairs each with the dense one."""

import json
import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds; nan where there is none."""

    values: tuple

    @property
    def mean(self):
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def deviation(self):
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan


@dataclass(frozen=True)
class Result:
    title: str
    is_dense: bool
    loss: Spread  # nats per byte of held-out text
    gap: Spread  # to the dense run of the same seed
    bytes_sent: float  # per rank, whole run
    saving: float  # how many times fewer than the dense run
    rounds: float  # share of steps that exchange anything


def read_run(folder):
    """Loss, bytes and rounds of one run; None if it is not there or not complete."""
    summary = folder / "summary.json"
    if not summary.exists():
        return None
    run = json.loads(summary.read_text())
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
    results = []
    for row in rows:
        own = {seed: runs[row.name, seed] for seed in seeds if (row.name, seed) in runs}
        if not own:
            continue
        dense = {
            seed: runs[row.dense, seed] for seed in own if (row.dense, seed) in runs
        }
        sent = statistics.fmean(run[1] for run in own.values())
        dense_sent = [run[1] for run in dense.values()]
        results.append(
            Result(
                title=row.title,
                is_dense=row.name == row.dense,
                loss=Spread(tuple(run[0] for run in own.values())),
                gap=Spread(tuple(own[seed][0] - dense[seed][0] for seed in dense)),
                bytes_sent=sent,
                saving=statistics.fmean(dense_sent) / sent
                if dense_sent and sent
                else math.nan,
                rounds=statistics.fmean(run[2] for run in own.values()),
            )
        )
    return results

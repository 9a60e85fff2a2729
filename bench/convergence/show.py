# SPDX-License-Identifier: Apache-2.0
"""A study's results as a table."""

import math

NONE = "–"

COLUMNS = (
    "",
    "n",
    "loss",
    "gap",
    "to",
    "sent per rank",
    "fewer bytes",
    "rounds per step",
)


def with_deviation(spread, pattern):
    if math.isnan(spread.mean):
        return NONE
    text = format(spread.mean, pattern)
    if math.isnan(spread.deviation):
        return text
    return f"{text} ± {format(spread.deviation, pattern.lstrip('+'))}"


def cells(result):
    return (
        result.title,
        str(len(result.loss.values)),
        with_deviation(result.loss, ".3f"),
        with_deviation(result.gap, "+.3f") if result.baseline else NONE,
        result.baseline or NONE,
        f"{result.bytes_sent / 1e6:.0f} MB",
        NONE if math.isnan(result.saving) else f"{result.saving:.1f}×",
        f"{result.rounds:.2f}",
    )


def as_markdown(columns, rows):
    lines = [columns, ("---",) * len(columns), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def markdown(results):
    return as_markdown(COLUMNS, map(cells, results))

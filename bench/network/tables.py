# SPDX-License-Identifier: Apache-2.0
"""The results as tables in Markdown."""

import math
import statistics

from results import of_flat, runs_to_loss, sets, settings
from training import MAIN
from variants import PEER, PLANNED, PLANNED_RUNS, WAYS, base, title

SHARES = 6  # moments at which long runs are compared


def in_order(rows):
    return sorted(rows, key=lambda row: list(WAYS).index(base(row.variant)))


def rate(mbit):
    return f"{mbit} Mbit/s" if mbit < 1000 else f"{mbit // 1000} Gbit/s"


def digits(value, count=3):
    """Returns a text with at least this many significant digits; whole numbers stay
    whole. Nothing is known of NaN."""
    if math.isnan(value):
        return ""
    rounded = float(f"{value:.{count - 1}e}")
    return f"{value:.{max(0, count - len(str(int(rounded))))}f}"


def size(count):
    return f"{digits(count / 1e6)} MB" if count >= 1e6 else f"{digits(count / 1e3)} KB"


def duration(seconds, longest):
    """Returns a text in the smallest unit that has the longest one beside it below
    1000."""
    units = ((1, "s"), (60, "min"), (3600, "h"))
    unit, name = next((u for u in units if longest < 1000 * u[0]), units[-1])
    return f"{digits(seconds / unit)} {name}"


def table(head, lines):
    rows = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def medians(one):
    steps = " or ".join(map(str, one.steps))
    return f"medians of {one.rounds} rounds of {steps} steps"


def steps_tables(found):
    """Yields a table for each number of ranks."""
    for ranks in dict.fromkeys(one.ranks for one in found):
        yield steps_table([one for one in found if one.ranks == ranks])


def steps_table(found):
    """Returns the steps of one number of ranks at all rates."""
    first = found[0]
    heading = (
        f"Steps of {first.ranks} ranks, medians of {first.rounds} rounds; computing "
        f"alone {digits(first.computing * 1e3)} ms:\n\n"
    )
    head = [
        *("ms per step (times as fast as DDP fp32)", "sent per rank", "computing"),
        *(rate(one.mbit) for one in found),
        "of max(computing, wire)",
    ]
    rows = {}
    for one in found:
        for row in one.rows:
            rows.setdefault(row.variant, []).append(row)
    lines = [
        [
            title(of_rate[0].variant),
            size(of_rate[0].bytes),
            digits(of_rate[0].computing * 1e3),
            *map(step_cell, of_rate),
            ", ".join(f"{row.of_limit:.2f}" for row in of_rate),
        ]
        for of_rate in (rows[row.variant] for row in in_order(found[0].rows))
    ]
    return heading + table(head, lines)


def step_cell(row):
    own = digits(row.seconds * 1e3)
    return own if row.variant == PEER else f"{own} ({digits(row.speedup)}×)"


def hosts_table(results, one):
    """Returns flat steps beside hierarchical ones. A host's bytes are those of its
    network card."""
    hosts = one.ranks // one.ranks_per_host
    heading = (
        f"{rate(one.mbit)}, {hosts} hosts of {one.ranks_per_host} ranks, "
        f"{medians(one)}; computing alone {digits(one.computing * 1e3)} ms:\n\n"
    )
    head = ["", "ms per step", "of flat", "sent per step and host", "wire alone, ms"]
    ratios = of_flat(results, one, "hosts")
    lines = [
        [
            title(row.variant),
            digits(row.seconds * 1e3),
            f"{ratios[row.variant]:.2f}" if row.variant in ratios else "",
            size(row.bytes),
            digits(row.wire * 1e3),
        ]
        for row in in_order(one.rows)
    ]
    return heading + table(head, lines)


def planned_ways(results, names, measured):
    """Yields each flat way of `thinwire plan` whose variant was measured at its rate,
    with the rate and what was measured."""
    for plan in results["plans"]:
        for way in plan["ways"]:
            found = measured.get((plan["mbit"], names.get(way.get("way"))))
            if found is not None and way["exchange"] == "flat":
                yield way, plan["mbit"], found


def by_rate(heading, cells):
    """Returns a table of (way, rate, text) with a row per way and a column per rate."""
    rates = dict.fromkeys(mbit for _, mbit, _ in cells)
    texts = {(way, mbit): text for way, mbit, text in cells}
    lines = [
        [way, *(texts.get((way, mbit), "") for mbit in rates)]
        for way in dict.fromkeys(way for way, _, _ in cells)
    ]
    return table([heading, *map(rate, rates)], lines)


def plan_table(results):
    """Returns the times of `thinwire plan` for each link beside the measured ones."""
    measured = {
        (one.mbit, row.variant): row.seconds * 1e3
        for one in sets(results, "steps")
        if one.ranks == 2
        for row in one.rows
    }
    cells = []
    for way, mbit, own in planned_ways(results, PLANNED, measured):
        planned = way["ms_per_step"]
        text = f"{digits(planned)}, {digits(own)} ({planned / own:.2f})"
        cells.append((way["way"], mbit, text))
    heading = "`thinwire plan`, 2 ranks: ms planned, measured (ratio)"
    return by_rate(heading, cells)


def planned_runs_table(results):
    """Returns whole runs of `thinwire plan --steps` beside what their measured steps
    add up to."""
    measured = {
        (mbit, run.variant): seconds
        for run in runs_to_loss(results)
        for mbit, seconds in run.whole.items()
    }
    cells = []
    for way, mbit, own in planned_ways(results, PLANNED_RUNS, measured):
        planned = way["run_seconds"]
        times = [duration(seconds, max(planned, own)) for seconds in (planned, own)]
        cells.append((way["way"], mbit, f"{', '.join(times)} ({planned / own:.2f})"))
    heading = "`thinwire plan --steps`, 2 ranks: planned, measured steps (ratio)"
    return by_rate(heading, cells)


def runs_table(results, setting):
    """Returns runs until they reach the peer's final loss."""
    runs = in_order(runs_to_loss(results, setting))
    peer = next((run for run in runs if run.variant == PEER), None)
    if peer is None:
        return ""
    steps = setting.steps
    head = [
        f"{setting}, until the loss of exact Adam after {steps} steps",
        *(f"loss after {steps}", "above exact Adam, of each seed", "steps"),
        *("sent per rank", *map(rate, peer.seconds)),
    ]
    is_main = setting == MAIN
    if is_main:
        head.append("in full at 100 Mbit/s")
    return table(head, [line_of_run(run, peer, is_main) for run in runs])


def line_of_run(run, peer, is_main):
    gaps = ", ".join(f"{gap:+.3f}" for gap in run.gaps)
    if len(run.gaps) > 1 and run is not peer:
        gaps += f" ({statistics.fmean(run.gaps):+.3f})"
    line = [
        title(run.variant),
        f"{run.loss:.3f}",
        "" if run is peer else gaps,
        f"not in {run.longest}" if run.steps is None else f"{run.steps:.0f}",
        "" if run.bytes is None else size(run.bytes),
        *(
            time_of({r.variant: r.seconds[mbit] for r in (run, peer)}, run.variant)
            for mbit in run.seconds
        ),
    ]
    if is_main:
        in_full = run.full_seconds
        line.append("" if in_full is None else duration(in_full, 0))
    return line


def time_of(seconds, name):
    """Returns the run's time, and how many times faster than the peer's it is."""
    if seconds[name] is None:
        return ""
    own = duration(seconds[name], max(filter(None, seconds.values())))
    if name == PEER or not seconds.get(PEER):
        return own
    return f"{own} ({digits(seconds[PEER] / seconds[name], 2)}×)"


def slow_runs_table(results):
    """Returns the losses of long runs over a slow link after equal shares of the time
    of the slowest one."""
    of_way = {run["variant"]: curve_of(run) for run in results["slow_runs"]}
    longest = max(curve[-1][0] for curve in of_way.values())
    moments = [longest * part / SHARES for part in range(1, SHARES + 1)]
    first = results["slow_runs"][0]
    head = [
        f"{first['steps']} steps at {rate(first['mbit'])}",
        *("ends after", "with the loss"),
        *(f"loss after {moment / 60:.1f} min" for moment in moments),
    ]
    lines = []
    for variant, curve in of_way.items():
        seen = [[loss for at, loss in curve if at <= moment] for moment in moments]
        lines.append(
            [
                title(variant),
                duration(curve[-1][0], longest),
                f"{curve[-1][1]:.3f}",
                *(f"{losses[-1]:.3f}" if losses else "" for losses in seen),
            ]
        )
    return table(head, lines)


def curve_of(run):
    """Returns the run's validation losses by the time of its steps before them."""
    return [(sum(run["seconds"][:step]), loss) for step, loss, _ in run["losses"]]


def markdown(results):
    found = sets(results, "steps")
    parts = [*steps_tables(found)]
    parts += [hosts_table(results, one) for one in sets(results, "hosts")]
    if results["plans"]:
        parts.append(plan_table(results))
    parts[:0] = [runs_table(results, setting) for setting in settings(results)]
    if results["losses"] and results["plans"]:
        parts.append(planned_runs_table(results))
    if results.get("slow_runs"):
        parts.append(slow_runs_table(results))
    return "\n".join(filter(None, parts))

# SPDX-License-Identifier: Apache-2.0
"""The results as tables in Markdown."""

from results import PEER, TARGET_LOSS, of_flat, run_seconds, sets, times_to_loss
from variants import NAMES, PLANNED, base, title


def in_order(rows):
    return sorted(rows, key=lambda row: list(NAMES).index(base(row.variant)))


def rate(mbit):
    return f"{mbit} Mbit/s" if mbit < 1000 else f"{mbit // 1000} Gbit/s"


def digits(value, count=3):
    """Returns a text with at least this many significant digits; whole numbers stay
    whole."""
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


def steps_table(one):
    heading = (
        f"{rate(one.mbit)}, {one.ranks} ranks, medians of {one.rounds} rounds; "
        f"computing alone {digits(one.computing * 1e3)} ms:\n\n"
    )
    head = [
        *("", "ms per step", "sent per step and rank", "times faster than DDP fp32"),
        *("computing, ms", "wire alone, ms", "of max(computing, wire)"),
    ]
    lines = [
        [
            title(row.variant),
            digits(row.seconds * 1e3),
            size(row.bytes),
            "" if row.variant == PEER else digits(row.speedup),
            digits(row.computing * 1e3),
            digits(row.wire * 1e3),
            f"{row.of_limit:.2f}",
        ]
        for row in in_order(one.rows)
    ]
    return heading + table(head, lines)


def hosts_table(results, one):
    """Returns flat steps beside hierarchical ones. A host's bytes are those of its
    network card."""
    hosts = one.ranks // one.ranks_per_host
    heading = (
        f"{rate(one.mbit)}, {hosts} hosts of {one.ranks_per_host} ranks, medians of "
        f"{one.rounds} rounds; computing alone {digits(one.computing * 1e3)} ms:\n\n"
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


def parts_table(found):
    """Returns the parts of a step of Thinwire's."""
    head = [
        *("ms of a step", "ranks", "rate", "all", "forward and backward"),
        *("optimizer, without waiting", "waiting for others", "wire alone"),
    ]
    lines = []
    for one in found:
        for row in in_order(one.rows):
            if "waiting" not in row.parts:
                continue
            parts = row.parts
            times = (
                *(row.seconds, parts["backward"], parts["update"] - parts["waiting"]),
                *(parts["waiting"], row.wire),
            )
            lines.append(
                [
                    title(row.variant),
                    str(one.ranks),
                    rate(one.mbit),
                    *(digits(seconds * 1e3) for seconds in times),
                ]
            )
    return table(head, lines)


def plan_table(results):
    """Returns the times of `thinwire plan` for each link beside the measured ones."""
    measured = {
        (one.mbit, row.variant): row.seconds
        for one in sets(results, "steps")
        if one.ranks == 2
        for row in one.rows
    }
    head = [
        "`thinwire plan`, 2 ranks",
        "rate",
        "planned, ms",
        "measured, ms",
        "planned over measured",
    ]
    lines = []
    for plan in results["plans"]:
        for way in plan["ways"]:
            key = (plan["mbit"], PLANNED.get(way.get("way")))
            if key not in measured or way["exchange"] != "flat":
                continue
            planned, seconds = way["ms_per_step"], measured[key]
            lines.append(
                [
                    way["way"],
                    rate(plan["mbit"]),
                    digits(planned),
                    digits(seconds * 1e3),
                    f"{planned / (seconds * 1e3):.2f}",
                ]
            )
    return table(head, lines)


def run_panels(results):
    """Returns (rate, steps, {variant: seconds}) of runs of two ranks by their length.
    At 10 Gbit/s little is to be gained, so it is left out."""
    return [
        (
            one.mbit,
            length,
            {row.variant: seconds[row.variant] for row in in_order(rows)},
        )
        for one in sets(results, "steps")
        if one.ranks == 2 and one.mbit <= 1000
        for length, seconds in run_seconds(results, one).items()
        if (rows := [row for row in one.rows if row.variant in seconds])
    ]


def runs_table(results):
    """Returns whole runs by their length, including exact steps."""
    panels = run_panels(results)
    head = ["whole runs of 2 ranks"]
    head += [f"{length:,} steps at {rate(mbit)}" for mbit, length, _ in panels]
    lines = [
        [title(name), *(time_of(seconds, name) for _, _, seconds in panels)]
        for name in panels[0][2]
    ]
    return table(head, lines)


def time_of(seconds, name):
    """Returns the run's time, and how many times faster than the peer's it is."""
    own = duration(seconds[name], max(seconds.values()))
    if name == PEER or PEER not in seconds:
        return own
    return f"{own} ({digits(seconds[PEER] / seconds[name], 2)}×)"


def loss_table(results):
    times = in_order(times_to_loss(results))
    rates = list(times[0].seconds)
    head = [
        "",
        f"steps to {TARGET_LOSS:.2f}",
        *(f"s at {rate(mbit)}" for mbit in rates),
        f"s run in full at {rate(results['run']['mbit'])}",
        f"s of the whole run, {results['run']['steps']} steps",
        "loss at its end",
    ]
    lines = [
        [
            title(time.variant),
            "not reached" if time.steps is None else f"{time.steps:.0f}",
            *(digits(time.seconds[mbit]) for mbit in rates),
            digits(time.run_seconds),
            digits(time.wall_seconds),
            f"{time.final_loss:.3f}",
        ]
        for time in times
    ]
    return table(head, lines)


def markdown(results):
    found = sets(results, "steps")
    parts = [*(steps_table(one) for one in found)]
    if found:
        parts.append(parts_table(found))
    parts += [hosts_table(results, one) for one in sets(results, "hosts")]
    if run_panels(results):
        parts.append(runs_table(results))
    if results["plans"]:
        parts.append(plan_table(results))
    if results["runs"]:
        parts.append(loss_table(results))
    return "\n".join(parts)

# SPDX-License-Identifier: Apache-2.0
"""The results as tables in Markdown."""

from results import PEER, TARGET_LOSS, sets, times_to_loss

NAMES = {
    "ddp_fp32": "torch DDP, fp32",
    "ddp_bf16": "torch DDP, bf16 hook",
    "ddp_powersgd1": "torch DDP, PowerSGD rank 1",
    "ddp_powersgd4": "torch DDP, PowerSGD rank 4",
    "adam": "Thinwire, Adam (exact)",
    "onebit_adam": "Thinwire, 1-bit Adam",
    "onebit_lamb": "Thinwire, 1-bit LAMB",
    "zero_one_adam": "Thinwire, 0/1 Adam",
    "python_onebit_adam": "Thinwire, 1-bit Adam, Python",
}


def in_order(rows):
    return sorted(rows, key=lambda row: list(NAMES).index(row.variant))


def rate(mbit):
    return f"{mbit} Mbit/s" if mbit < 1000 else f"{mbit // 1000} Gbit/s"


def digits(value, count=3):
    """At least so many significant ones; whole numbers stay whole."""
    rounded = float(f"{value:.{count - 1}e}")
    return f"{value:.{max(0, count - len(str(int(rounded))))}f}"


def size(count):
    return f"{digits(count / 1e6)} MB" if count >= 1e6 else f"{digits(count / 1e3)} KB"


def table(head, lines):
    rows = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def steps_table(one):
    title = (
        f"{rate(one.mbit)}, {one.ranks} ranks, medians of {one.rounds} rounds; "
        f"computing alone {digits(one.computing * 1e3)} ms:\n\n"
    )
    head = [
        *("", "ms per step", "sent per step and rank", "times faster than DDP fp32"),
        *("wire alone, ms", "of max(computing, wire)"),
    ]
    lines = [
        [
            NAMES[row.variant],
            digits(row.seconds * 1e3),
            size(row.bytes),
            "" if row.variant == PEER else digits(row.speedup),
            digits(row.wire * 1e3),
            f"{row.of_limit:.2f}",
        ]
        for row in in_order(one.rows)
    ]
    return title + table(head, lines)


def parts_table(found):
    """Where a step of Thinwire's goes."""
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
                    NAMES[row.variant],
                    str(one.ranks),
                    rate(one.mbit),
                    *(digits(seconds * 1e3) for seconds in times),
                ]
            )
    return table(head, lines)


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
            NAMES[time.variant],
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
    parts = [*(steps_table(one) for one in found), parts_table(found)]
    if results["runs"]:
        parts.append(loss_table(results))
    return "\n".join(parts)


def short_table(results):
    """For README: step time at each rate, of two ranks."""
    found = [one for one in sets(results, "steps") if one.ranks == 2]
    head = ["2 ranks", "sent per step", *(f"ms at {rate(one.mbit)}" for one in found)]
    rows = {one.mbit: {row.variant: row for row in one.rows} for one in found}
    first = found[0].mbit
    lines = []
    for row in in_order(rows[first].values()):
        times = []
        for one in found:
            own = rows[one.mbit][row.variant]
            faster = "" if own.variant == PEER else f" ({digits(own.speedup, 2)}×)"
            times.append(digits(own.seconds * 1e3) + faster)
        lines.append([NAMES[row.variant], size(row.bytes), *times])
    return table(head, lines)

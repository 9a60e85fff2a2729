# SPDX-License-Identifier: Apache-2.0
"""A study's results as a table and as a page with a plot."""

import html
import math

# Lengths in units of the SVG's view box.
WIDTH, ROW, TOP, BOTTOM, LEFT, RIGHT = 860, 30, 14, 40, 280, 24
NONE = "–"

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<title>What compression costs in loss – Thinwire</title>
<style>
:root {{ --page: #fff; --ink: #1a1a19; --ink-2: #6b6a66; --grid: #e4e3df; --dot: #2a78d6; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --page: #1a1a19; --ink: #f4f4f2; --ink-2: #a3a29c; --grid: #3a3a37; --dot: #3987e5; }}
}}
body {{ margin: 32px auto; max-width: 900px; padding: 0 16px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 24px; margin: 0; }}
p {{ color: var(--ink-2); }}
svg {{ width: 100%; height: auto; }}
svg text {{ fill: var(--ink); font: 13px system-ui, sans-serif; }}
svg .tick {{ fill: var(--ink-2); }}
.grid {{ stroke: var(--grid); }} .zero {{ stroke: var(--ink-2); }}
.spread {{ stroke: var(--dot); stroke-width: 2; }}
.mean {{ fill: var(--dot); }} .seed {{ fill: none; stroke: var(--dot); opacity: 0.6; }}
table {{ border-collapse: collapse; width: 100%; margin-top: 24px; font-size: 14px; }}
th, td {{ text-align: right; padding: 5px 8px; border-bottom: 1px solid var(--grid); }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0; }}
th {{ color: var(--ink-2); font-weight: 500; }}
</style></head><body>
<h1>What compression costs in loss</h1>
<p>Loss on held-out text minus that of the run it is held against, with the same seed
and learning rate, nats per byte: circles are seeds, the dot is their mean, the line one
standard deviation to either side. Right of 0 is worse.</p>
{plot}
{table}
</body></html>
"""

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


def html_table(results):
    def line(tag, texts):
        return (
            "<tr>"
            + "".join(f"<{tag}>{html.escape(t)}</{tag}>" for t in texts)
            + "</tr>\n"
        )

    body = "".join(line("td", cells(result)) for result in results)
    return f"<table>{line('th', COLUMNS)}{body}</table>"


def step_of(span):
    """Returns the distance of ticks: about six of them, at round values."""
    power = 10 ** math.floor(math.log10(span / 6))
    return next(power * lead for lead in (1, 2, 5, 10) if power * lead * 6 >= span)


def plot(results):
    shown = [result for result in results if result.baseline and result.gap.values]
    values = [0.0, *(value for result in shown for value in result.gap.values)]
    step = step_of(max(max(values) - min(values), 1e-3))
    first = math.floor(min(values) / step)
    last = max(first + 1, math.ceil(max(values) / step))
    bottom = TOP + ROW * len(shown)

    def x(value):
        return LEFT + (value / step - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    svg = (
        f'<svg viewBox="0 0 {WIDTH} {bottom + BOTTOM}" role="img" aria-label="gaps">\n'
    )
    for tick in range(first, last + 1):
        at, kind = x(tick * step), "grid" if tick else "zero"
        svg += f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}" class="{kind}"/>'
        svg += (
            f'<text x="{at:.1f}" y="{bottom + 20}" class="tick" text-anchor="middle">'
        )
        svg += f"{tick * step:+.3g}</text>\n"
    for number, result in enumerate(shown):
        y, mean = TOP + ROW * (number + 0.5), result.gap.mean
        svg += f'<text x="0" y="{y + 4}">{html.escape(result.title)}</text>'
        if not math.isnan(deviation := result.gap.deviation):
            ends = f'x1="{x(mean - deviation):.1f}" x2="{x(mean + deviation):.1f}"'
            svg += f'<line {ends} y1="{y}" y2="{y}" class="spread"/>'
        for value in result.gap.values:
            svg += f'<circle cx="{x(value):.1f}" cy="{y}" r="3.5" class="seed"/>'
        svg += f'<circle cx="{x(mean):.1f}" cy="{y}" r="5" class="mean"/>\n'
    return PAGE.format(plot=svg + "</svg>", table=html_table(results))

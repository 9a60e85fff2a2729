# SPDX-License-Identifier: Apache-2.0
"""Draws runs until they reach exact Adam's loss as a picture: bytes and times, a bar
each. Colours follow the reader's scheme; texts stay texts."""

import html

from results import runs_to_loss, sets
from tables import in_order, rate, size, time_of
from training import MAIN
from variants import PEER, WAYS, title

# In units of the view box.
WIDTH, LEFT, TOP, ROW, BOTTOM, MARGIN = 1320, 300, 46, 26, 60, 16
LINE = 17
BAR, LABEL = 84, 120
PANEL = BAR + LABEL

# Plain rules without variables, and a white page, so that viewers without colour
# schemes show it light on any background.
STYLE = """
.page { fill: #ffffff; }
text { fill: #1a1a19; font: 13px system-ui, -apple-system, sans-serif; }
.head { font-weight: 600; }
.quiet { fill: #6b6a66; font-size: 12px; }
.ours { fill: #2a78d6; }
.peer { fill: #a3a29c; }
line { stroke: #d8d7d3; }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117; }
  text { fill: #f4f4f2; }
  .quiet { fill: #a3a29c; }
  .ours { fill: #4a98ea; }
  .peer { fill: #77766f; }
  line { stroke: #3f3f3c; }
}
"""


def text(x, y, words, kind=""):
    shown = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{shown}>{html.escape(words)}</text>\n'


def bar(x, y, length, variant, words):
    kind = "ours" if "thinwire" in title(variant).lower() else "peer"
    length = max(1.5, length)
    svg = f'<rect x="{x:g}" y="{y:g}" width="{length:.1f}" height="14" rx="2" '
    svg += f'class="{kind}"/>\n'
    return svg + text(x + length + 6, y + 11.5, words)


def panel(corner, head, bars):
    """Draws one bar per (variant, value, label), the longest BAR long. A row of panels
    begins at `corner`; `head` is a title and a unit."""
    x, top = corner[0], corner[1] + TOP
    longest = max(value for _, value, _ in bars)
    end = top + ROW * len(bars)
    svg = text(x, top - 26, head[0], "head") + text(x, top - 10, head[1], "quiet")
    svg += f'<line x1="{x:g}" x2="{x:g}" y1="{top}" y2="{end}"/>\n'
    for number, (variant, value, label) in enumerate(bars):
        y = top + ROW * number + 6
        svg += bar(x, y, BAR * value / longest, variant, label)
    return svg


def names_column(top, names):
    return "".join(
        text(0, top + TOP + ROW * number + 17.5, title(variant))
        for number, variant in enumerate(names)
    )


def panels(runs):
    peer = next(run for run in runs if run.variant == PEER)
    svg = names_column(0, [run.variant for run in runs])
    sent = [(run.variant, run.bytes, size(run.bytes)) for run in runs]
    svg += panel((LEFT, 0), ("Sent", "by a rank in the run"), sent)
    for number, mbit in enumerate(peer.seconds, 1):
        bars = [
            (
                run.variant,
                run.seconds[mbit],
                time_of({r.variant: r.seconds[mbit] for r in (run, peer)}, run.variant),
            )
            for run in runs
        ]
        svg += panel((LEFT + PANEL * number, 0), (rate(mbit), "time of the run"), bars)
    return svg


def is_missed(run):
    """Returns whether a way of the picture did not reach the loss in every seed."""
    return WAYS[run.variant].is_shown and run.steps is None


def captions_of(results, runs):
    params = results["rounds"][0]["params"] / 1e6
    steps = MAIN.steps
    missing = [title(r.variant) for r in runs_to_loss(results) if is_missed(r)]
    missing = f" Not reached: {', '.join(missing)}." if missing else ""
    seeds = min(run.seeds for run in runs)
    one = sets(results, "steps")[0]
    return [
        (
            f"Runs until they reach the loss of exact Adam after {steps} steps; means of "
            f"{seeds} seeds. In brackets: times as fast as DDP fp32.{missing}"
        ),
        (
            f"GPT of {params:.1f} M parameters, fp32, {results['batch']} × "
            f"{results['context']} bytes per rank and step; 2 ranks on one "
            f"{results['processor']}, {results['cores']} cores. Emulated Ethernet; the "
            f"steps of a run are counted, and take the medians of {one.rounds} rounds."
        ),
    ]


def picture(results):
    """Returns the picture, or None if the peer was not both run and measured."""
    runs = [
        run
        for run in in_order(runs_to_loss(results))
        if WAYS[run.variant].is_shown
        and run.seconds
        and None not in (run.bytes, *run.seconds.values())
    ]
    if PEER not in [run.variant for run in runs]:
        return None
    height = TOP + ROW * len(runs)
    body = panels(runs)
    for number, caption in enumerate(captions_of(results, runs)):
        body += text(0, height + 24 + LINE * number, caption, "quiet")
    height += BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-MARGIN} {-MARGIN} '
        f'{WIDTH + 2 * MARGIN} {height + 2 * MARGIN}" '
        'role="img" aria-labelledby="title">\n'
        '<title id="title">Bytes and time of runs that reach the same loss over slow '
        f"networks: torch DDP and Thinwire</title>\n<style>{STYLE}</style>\n"
        f'<rect x="{-MARGIN}" y="{-MARGIN}" width="100%" height="100%" class="page"/>\n'
        f"{body}</svg>\n"
    )

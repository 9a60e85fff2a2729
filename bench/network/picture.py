# SPDX-License-Identifier: Apache-2.0
"""Draws the results as a picture: bytes and step times, a bar each. DDP's is the
longest of most. Colours follow the reader's scheme; texts stay texts."""

import html

from results import PEER, sets
from tables import digits, in_order, rate, run_panels, size, time_of
from variants import title

# In units of the view box.
WIDTH, LEFT, TOP, ROW, BOTTOM, MARGIN = 1070, 256, 46, 26, 60, 16
GAP, LINE = 24, 17
BAR, LABEL = 84, 120
PANEL = BAR + LABEL

# Plain rules, no variables, and a page of its own, so that viewers without colour
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
    kind = "peer" if variant.startswith("ddp") else "ours"
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


def panels_of_runs(results, top):
    """Draws whole runs at the slowest rate, by length, and one at the next."""
    panels = run_panels(results)
    slowest = [one for one in panels if one[0] == panels[0][0]]
    faster = [one for one in panels if one[0] != panels[0][0]]
    svg = names_column(top, panels[0][2])
    for number, (mbit, length, seconds) in enumerate(slowest + faster[1:2]):
        bars = [
            (name, value, time_of(seconds, name)) for name, value in seconds.items()
        ]
        head = (f"{length:,} steps, {rate(mbit)}", "time of the whole run")
        svg += panel((LEFT + PANEL * number, top), head, bars)
    return svg


def of_peer(row):
    if row.variant == PEER:
        return ""
    return f" ({digits(row.speedup, 2)}×)"


def panels_of_steps(found):
    rows = in_order(found[0].rows)
    svg = names_column(0, [row.variant for row in rows])
    sent = [(row.variant, row.bytes, size(row.bytes)) for row in rows]
    svg += panel((LEFT, 0), ("Sent", "per step and rank"), sent)
    for number, one in enumerate(found, 1):
        bars = [
            (row.variant, row.seconds, digits(row.seconds * 1e3) + " ms" + of_peer(row))
            for row in in_order(one.rows)
        ]
        svg += panel(
            (LEFT + PANEL * number, 0), (rate(one.mbit), "time per step"), bars
        )
    return svg


def captions_of(results, found):
    model = results["models"]["steps"]
    params = results["rounds"][0]["params"] / 1e6
    captions = [
        (
            f"GPT of {params:.1f} M parameters, fp32, {model['batch']} × "
            f"{results['context']} bytes per rank and step; 2 ranks on one "
            f"{results['processor']}, {results['cores']} cores."
        ),
        (
            f"Emulated Ethernet; medians of {found[0].rounds} rounds, all in turns; steps "
            "of 1-bit and 0/1 optimizers after warm-up. In brackets: times faster than "
            "DDP fp32."
        ),
    ]
    if run_panels(results):
        captions.append(
            "Whole runs: the times of their steps added up; 1-bit optimizers begin with "
            "exact ones, a fifth of the run, at most 1,000. PowerSGD begins in step 3."
        )
    return captions


def picture(results):
    found = [one for one in sets(results, "steps") if one.ranks == 2]
    block = TOP + ROW * len(found[0].rows)
    body, height = panels_of_steps(found), block
    if run_panels(results):
        body += panels_of_runs(results, block + GAP)
        height += GAP + block
    for number, caption in enumerate(captions_of(results, found)):
        body += text(0, height + 24 + LINE * number, caption, "quiet")
    height += BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-MARGIN} {-MARGIN} '
        f'{WIDTH + 2 * MARGIN} {height + 2 * MARGIN}" '
        'role="img" aria-labelledby="title">\n'
        '<title id="title">Bytes sent and time per training step and per run on slow '
        f"networks: torch DDP and Thinwire</title>\n<style>{STYLE}</style>\n"
        f'<rect x="{-MARGIN}" y="{-MARGIN}" width="100%" height="100%" class="page"/>\n'
        f"{body}</svg>\n"
    )

# SPDX-License-Identifier: Apache-2.0
"""The results as a picture: bytes and step times, a bar each, DDP's the longest
of most. Colours follow the reader's scheme; nothing is drawn as outlines."""

import html

from results import PEER, sets
from tables import digits, in_order, rate, size
from variants import title

# In the units of the view box.
WIDTH, LEFT, TOP, ROW, BOTTOM, MARGIN = 1010, 196, 46, 26, 44, 16
BAR, LABEL = 84, 120
PANEL = BAR + LABEL

# Plain rules, no variables, and a page of its own: who knows neither schemes nor
# what is behind the picture shows it light.
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


def panel(x, title, unit, bars):
    """One bar per (variant, value, label), the longest BAR long."""
    longest = max(value for _, value, _ in bars)
    end = TOP + ROW * len(bars)
    svg = text(x, TOP - 26, title, "head") + text(x, TOP - 10, unit, "quiet")
    svg += f'<line x1="{x:g}" x2="{x:g}" y1="{TOP}" y2="{end}"/>\n'
    for number, (variant, value, label) in enumerate(bars):
        y = TOP + ROW * number + 6
        svg += bar(x, y, BAR * value / longest, variant, label)
    return svg


def of_peer(row):
    if row.variant == PEER:
        return ""
    return f" ({digits(row.speedup, 2)}×)"


def picture(results):
    found = [one for one in sets(results, "steps") if one.ranks == 2]
    names = [row.variant for row in in_order(found[0].rows)]
    height = TOP + ROW * len(names) + BOTTOM
    model = results["models"]["steps"]
    params = results["rounds"][0]["params"] / 1e6
    cores, rounds = results["cores"], found[0].rounds
    captions = [
        (
            f"GPT of {params:.1f} M parameters, fp32, {model['batch']} × "
            f"{results['context']} bytes per rank and step; 2 ranks on one "
            f"{results['processor']}, {cores} cores."
        ),
        (
            f"Emulated Ethernet; medians of {rounds} rounds, all in turns; 1-bit and 0/1 "
            "optimizers after warm-up. In brackets: times faster than DDP fp32."
        ),
    ]
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-MARGIN} {-MARGIN} '
        f'{WIDTH + 2 * MARGIN} {height + 2 * MARGIN}" '
        'role="img" aria-labelledby="title">\n'
        '<title id="title">Bytes sent and time per training step on slow networks: '
        f"torch DDP and Thinwire</title>\n<style>{STYLE}</style>\n"
        f'<rect x="{-MARGIN}" y="{-MARGIN}" width="100%" height="100%" class="page"/>\n'
    )
    for number, variant in enumerate(names):
        svg += text(0, TOP + ROW * number + 17.5, title(variant))
    rows = in_order(found[0].rows)
    svg += panel(
        LEFT,
        "Sent",
        "per step and rank",
        [(row.variant, row.bytes, size(row.bytes)) for row in rows],
    )
    for number, one in enumerate(found, 1):
        bars = [
            (row.variant, row.seconds, digits(row.seconds * 1e3) + " ms" + of_peer(row))
            for row in in_order(one.rows)
        ]
        svg += panel(LEFT + PANEL * number, rate(one.mbit), "time per step", bars)
    for number, caption in enumerate(captions):
        y = height - BOTTOM + 24 + 17 * number
        svg += text(0, y, caption, "quiet")
    return svg + "</svg>\n"

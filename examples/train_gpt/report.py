#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reports runs of train_gpt: prints a table, and writes a page with four figures.

usage: .venv/bin/python examples/train_gpt/report.py RUN... [--out DIR]

RUN is a folder that train_gpt or python/demo/train_gpt.py has written, also while its run
still trains. The page is DIR/report.html, by default that of the only RUN. It is one file
that needs nothing else. matplotlib, which draws the figures, is in .venv.
"""

import argparse
import html
import io
import json
import math
import re
import sys
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path

NO_VALUE = "–"
PARTS = 50  # of a run; a curve has the mean of each
# Okabe and Ito's colours, which readers of any colour vision tell apart. Lines of the
# eighth run and later differ in their dashes, like all others.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (9, 3)))
MARKERS = "os^Dv"
# Keys of summary.json with the sums of keys of metrics.jsonl.
TOTALS = {"bytes_sent": "bytes_sent_per_rank", "seconds": "seconds"}


class RunError(Exception):
    """A folder is not that of a run; the text names the file."""


@dataclass
class Run:
    summary: dict
    settings: dict  # by key of config.json
    steps: list
    validations: list
    name: str = ""
    style: dict = field(default_factory=dict)  # of its lines

    def known(self, key):
        return number(self.summary.get(key))

    def bytes_per_step(self, phase):
        sent = [row["bytes_sent"] for row in self.steps if row["phase"] == phase]
        return sum(sent) / len(sent) if sent else math.nan

    def rounds_per_step(self):
        """A step in which only a flag travelled is not a round."""
        sends = [
            row["bytes_sent"] > 0 and row["phase"] != "local" for row in self.steps
        ]
        return sum(sends) / len(sends)

    def saving(self):
        """Returns how many times more bytes fp32 averages of all gradients would have
        sent. Unknown if the run was resumed, maybe with other ranks."""
        ranks, sent = self.known("ranks"), self.known("bytes_sent_per_rank")
        if "resumed_from" in self.summary or not ranks >= 2 or not sent > 0:
            return math.nan
        each = 2 * (ranks - 1) / ranks * 4 * self.known("params")
        return len(self.steps) * each / sent

    def milliseconds(self, key):
        """Returns those of a step; Python's runs do not measure these parts."""
        return 1e3 * sum(row.get(key, math.nan) for row in self.steps) / len(self.steps)

    def parts(self, key):
        """Returns the middle steps of up to PARTS parts of the run, and means of `key`."""
        count = min(PARTS, len(self.steps))
        ends = [len(self.steps) * part // count for part in range(count + 1)]
        rows = [self.steps[a:b] for a, b in pairwise(ends)]
        middles = [part[len(part) // 2]["step"] for part in rows]
        return middles, [sum(number(r[key]) for r in part) / len(part) for part in rows]

    def held_out(self, key=None):
        """Returns the sums of `key` up to each validation, or its step, and the losses.
        Sums of a resumed run include those of the steps before."""
        sums = list(accumulate(row[key] if key else 1 for row in self.steps))
        if key and "resumed_from" in self.summary:
            before = max(0, self.known(TOTALS[key]) - sums[-1])
            sums = [total + before for total in sums]
        at = {row["step"]: total for row, total in zip(self.steps, sums)}
        rows = [row for row in self.validations if row["step"] in at]
        where = [at[row["step"]] if key else row["step"] for row in rows]
        return where, [number(row["val_loss"]) for row in rows]


def number(value):
    """Returns it as a float; JSON has null for numbers that are not finite."""
    return math.nan if value is None else float(value)


# ---- reading


def read_json(path):
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RunError(f"{path}: must be a JSON object")
    return value


def checked(row, keys):
    """Returns the row. Raises KeyError, TypeError or OverflowError unless it has these
    numbers. Only a loss may be null.
    """
    for key in (*keys, *(row.keys() & {"wait_seconds", "update_seconds"})):
        value = row[key]
        if value is None and key in ("loss", "val_loss"):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{key} is not a number")
        float(value)
    return row


def read_rows(path):
    """Returns the rows of steps and of validations. A run that was killed, or still
    writes, may end in a torn line, which is left out."""
    steps, validations = [], []
    lines = path.read_text(errors="replace").splitlines(keepends=True)
    for at, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if "val_loss" in row:
                validations.append(checked(row, ("step", "val_loss")))
            else:
                steps.append(checked(row, ("step", "loss", "bytes_sent", "seconds")))
                row["phase"] = str(row["phase"])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            if at == len(lines) and not line.endswith("\n"):
                warn(f"{path}: line {at} is torn, and left out")
                break
            raise RunError(
                f"{path}: line {at} is not what train_gpt writes: "
                f"{type(error).__name__}: {error}"
            ) from None
    if not steps:
        raise RunError(f"{path}: has no step yet: there is nothing to report")
    return steps, validations


def settings_of(config):
    """Returns all keys of a config.json with their paths, train_gpt's own first."""
    own = config.get("train_gpt")
    own = own if isinstance(own, dict) else {}
    settings = {key: value for key, value in own.items() if key != "data"}

    def add(path, value):
        if isinstance(value, dict):
            for key, part in value.items():
                add(f"{path}.{key}" if path else key, part)
        else:
            settings[path] = value

    add("", {key: value for key, value in config.items() if key != "train_gpt"})
    return settings


def read_run(folder):
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        missing = (
            "has no metrics.jsonl" if folder.is_dir() else "there is no such folder"
        )
        raise RunError(f"{folder}: {missing}; name the --out folder of a run")
    steps, validations = read_rows(metrics)
    settings = settings_of(read_json(folder / "config.json"))
    if (folder / "summary.json").exists():
        summary = read_json(folder / "summary.json")
        if "optimizer" not in summary or "steps" not in summary:
            raise RunError(f"{folder / 'summary.json'}: lacks optimizer or steps")
    else:  # the run was killed, or still trains
        last = [number(row["val_loss"]) for row in validations[-1:]]
        summary = {
            "optimizer": settings.get("optimizer", folder.name),
            "steps": settings.get("steps", steps[-1]["step"]),
            "final_val_loss": last[0] if last else None,
            "final_val_bits_per_byte": last[0] / math.log(2) if last else None,
            "bytes_sent_per_rank": sum(row["bytes_sent"] for row in steps),
            "seconds": sum(row["seconds"] for row in steps),
            "stopped_at": steps[-1]["step"],
        }
    losses = [number(row["loss"]) for row in steps]
    if bad := sum(not math.isfinite(loss) for loss in losses):
        first = next(r["step"] for r, x in zip(steps, losses) if not math.isfinite(x))
        warn(f"{metrics}: {bad} losses are not finite, the first at step {first}")
    return Run(summary, settings, steps, validations)


def name_runs(runs):
    """Gives each run its optimizer's name, and a number if two are alike."""
    for run in runs:
        run.name = run.summary["optimizer"]
        if "zero_bits" in run.summary:
            zero, bits = run.summary["zero"], run.summary["zero_bits"]
            run.name += f", ZeRO-{zero} in {bits} bits"
    names = [run.name for run in runs]
    for at, run in enumerate(runs):
        if names.count(names[at]) > 1:
            run.name += f" ({at + 1})"
        for word, key in (("resumed", "resumed_from"), ("stopped", "stopped_at")):
            if key in run.summary:
                run.name += f", {word} at step {run.summary[key]}"
        run.style = {
            "color": COLOURS[at % len(COLOURS)],
            "linestyle": DASHES[at % len(DASHES)],
        }


# ---- texts


def scaled(value, units):
    """Returns three digits and a unit."""
    unit = 0
    while value >= 999.5 and unit + 1 < len(units):
        value, unit = value / 1000, unit + 1
    decimals = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{decimals}f}{units[unit]}"


def bytes_text(value):
    return scaled(value, (" B", " KB", " MB", " GB", " TB"))


def shown(value, form):
    """`form` is a function of a number, or a format."""
    if not math.isfinite(value):
        return NO_VALUE
    return form.format(value) if isinstance(form, str) else form(value)


# Title, form and value of each column of the table.
COLUMNS = (
    ("val nats/byte", "{:.4f}", lambda run: run.known("final_val_loss")),
    ("val bits/byte", "{:.4f}", lambda run: run.known("final_val_bits_per_byte")),
    ("sent/warm-up step", bytes_text, lambda run: run.bytes_per_step("exact")),
    ("sent/compr. step", bytes_text, lambda run: run.bytes_per_step("compressed")),
    ("sent/local step", bytes_text, lambda run: run.bytes_per_step("local")),
    ("saving", "{:.1f}×", Run.saving),
    ("rounds/step", "{:.3g}", Run.rounds_per_step),
    ("sent in all", bytes_text, lambda run: run.known("bytes_sent_per_rank")),
    ("seconds", "{:.1f}", lambda run: run.known("seconds")),
)


def cells(run):
    return [shown(value(run), form) for _, form, value in COLUMNS]


def table_text(runs):
    width = max(16, *(len(run.name) + 1 for run in runs))
    lines = [("optimizer", [title for title, *_ in COLUMNS])]
    lines += [(run.name, cells(run)) for run in runs]
    return "\n".join(
        f"{name:{width}}"
        + "".join(f"{cell:>{len(c[0]) + 2}}" for cell, c in zip(row, COLUMNS))
        for name, row in lines
    )


def memory(kind):
    return lambda run: shown(
        number(run.summary.get("memory", {}).get(kind)), bytes_text
    )


def count(key):
    return lambda run: shown(run.known(key), "{:.0f}")


DETAILS = {
    **{key: count(key) for key in ("ranks", "params", "skipped_steps", "saves")},
    "tokens_per_second": count("tokens_per_second"),
    "waiting for ranks, ms per step": lambda run: shown(
        run.milliseconds("wait_seconds"), "{:.4g}"
    ),
    "updating, ms per step": lambda run: shown(
        run.milliseconds("update_seconds"), "{:.4g}"
    ),
    **{
        f"memory of a rank at its peak: {kind}": memory(kind)
        for kind in ("peak", "parameters", "gradients", "states", "buckets", "other")
    },
    "params_checksum": lambda run: run.summary.get("params_checksum") or NO_VALUE,
}


def setting(key):
    def text(run):
        if key not in run.settings:
            return NO_VALUE
        value = run.settings[key]
        return value if isinstance(value, str) else json.dumps(value)

    return text


# ---- the page


def draw_figures(runs):
    """Returns titles and SVG. Runs that send nothing have two figures instead of four."""
    try:
        import matplotlib
    except ImportError:
        raise RunError(
            "matplotlib is not installed: scripts/bootstrap puts it into .venv; "
            "run .venv/bin/python examples/train_gpt/report.py"
        ) from None
    matplotlib.use("svg")
    matplotlib.rcParams |= {
        "svg.fonttype": "none",  # texts stay texts
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e4e3df",
    }
    loss = "loss (nats per byte)"
    figures = [("Loss by step", "step", loss, draw_by_step)]
    if sends := any(row["bytes_sent"] for run in runs for row in run.steps):
        sent = "bytes sent per rank so far"
        title = "Loss on held-out text by bytes sent"
        figures.append((title, sent, loss, held_out_by("bytes_sent")))
    title = "Loss on held-out text by time"
    figures.append(
        (title, "time of the steps so far (s)", loss, held_out_by("seconds"))
    )
    if sends:
        each = "bytes sent per rank and step"
        figures.append(("Bytes sent per step", "step", each, draw_bytes))
    return [(figure[0], svg_of(runs, *figure)) for figure in figures]


def draw_by_step(axes, runs):
    for at, run in enumerate(runs):
        axes.plot(*run.parts("loss"), **run.style)
        dots = {"color": run.style["color"], "marker": MARKERS[at % len(MARKERS)]}
        axes.plot(*run.held_out(), **dots, linestyle="none", markersize=3.5)
    firsts = [loss for run in runs for loss in run.held_out()[1][:1]]
    finite = [loss for loss in firsts if math.isfinite(loss)]
    if finite:  # the first losses would leave no room for the others
        axes.set_ylim(top=max(finite) * 1.1)


def held_out_by(key):
    def draw(axes, runs):
        for at, run in enumerate(runs):
            dots = {"marker": MARKERS[at % len(MARKERS)], "markersize": 3.5}
            axes.plot(*run.held_out(key), **run.style, **dots)
        if key == "bytes_sent":
            axes.locator_params(axis="x", nbins=6)
            axes.xaxis.set_major_formatter(bytes_of_ticks())

    return draw


def draw_bytes(axes, runs):
    sent = []
    for run in runs:
        steps, means = run.parts("bytes_sent")
        axes.plot(steps, means, **run.style)
        sent += [mean for mean in means if mean > 0]
    if max(sent) > 10 * min(sent):
        axes.set_yscale("log", nonpositive="mask")
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(bytes_of_ticks())


def bytes_of_ticks():
    from matplotlib.ticker import EngFormatter, FuncFormatter

    plain = EngFormatter(unit="B", sep=" ")
    return FuncFormatter(lambda value, _: plain(value).replace("k", "K"))


def svg_of(runs, title, x_title, y_title, draw):
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    # Names of clips and marks follow from this, so that a page is always the same.
    matplotlib.rcParams["svg.hashsalt"] = title
    figure = Figure(figsize=(5.2, 3.2 + 0.2 * len(runs)), layout="constrained")
    axes = figure.subplots()
    draw(axes, runs)
    axes.set_xlabel(x_title)
    axes.set_ylabel(y_title)
    lines = [
        Line2D([], [], **run.style, marker=MARKERS[at % len(MARKERS)], markersize=3.5)
        for at, run in enumerate(runs)
    ]
    names = [run.name.replace("$", r"\$") for run in runs]
    figure.legend(lines, names, loc="outside lower left", frameon=False, handlelength=4)
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", metadata=nothing)
    svg = text.getvalue()
    box = re.search(r'viewBox="[^"]*"', svg).group()
    svg = svg[svg.index(">", svg.index("<svg")) + 1 :]
    # The page has several figures, so that names in each begin with its own.
    prefix = re.sub(r"\W", "", title)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    label = f'role="img" aria-label="{html.escape(title)}"'
    space = 'xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg {box} {space} {label} xmlns="http://www.w3.org/2000/svg">{svg}'


PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light">
<title>{title} – Thinwire</title>
<style>
body {{
  margin: 0 auto; max-width: 1240px; padding: 16px; background: #ffffff; color: #1a1a19;
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif;
}}
h1 {{ margin: 0; font-size: 26px; line-height: 1.2; }}
p, footer, figcaption {{ max-width: 75ch; }}
section {{
  overflow-x: auto; margin: 16px 0;
  /* A shadow at the edge shows that a wide table continues there. */
  background:
    linear-gradient(to right, #ffffff 24px, transparent 48px) local,
    linear-gradient(to left, #ffffff 24px, transparent 48px) 100% 0 local,
    linear-gradient(to right, #c9c8c4, transparent 12px),
    linear-gradient(to left, #c9c8c4, transparent 12px) #ffffff;
}}
figure {{ margin: 0; }}
figcaption, summary {{ font-weight: 600; }}
#figures {{
  display: grid; gap: 16px 24px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr));
}}
svg {{ display: block; width: 100%; height: auto; }}
table {{ width: 100%; border-collapse: collapse; }}
th, td {{ padding: 6px 0 6px 12px; text-align: right; vertical-align: baseline; }}
:is(th, td):first-child {{ padding-left: 0; text-align: left; }}
#results td:not(:first-child) {{ white-space: nowrap; }}
#results td:first-child {{ min-width: 9em; }}
details :is(th, td) {{ overflow-wrap: anywhere; }}
th {{ font-size: 13px; font-weight: 500; color: #52514e; }}
td {{ border-top: 1px solid #e4e3df; font-variant-numeric: tabular-nums; }}
.differs td {{ font-weight: 600; }}
footer {{ margin-top: 16px; color: #52514e; font-size: 13px; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{subtitle}</p>
<section><table id="results">
{results}</table></section>
<div id="figures">
{figures}</div>
<section><details><summary>Settings and measurements</summary><table>
{details}</table></details></section>
<footer>Loss is in nats per byte (bits are nats ÷ ln 2). Marks are held-out text. Lines of
loss and of bytes by step are means over 1/50 of the run; the first losses are above the
figure. Bytes are those that the optimizer of rank 0 passed to its transport; a round is a
step that sends any. Saving is the ratio of the bytes of fp32 averages of all gradients to
the bytes sent. Time is that of the steps, without validation. {unsent}</footer>
</body>
</html>
"""
UNSENT = "These runs sent no bytes, so two figures are missing."


def row_html(row, tag="td", kind=""):
    texts = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
    return f"<tr{kind}>{texts}</tr>\n"


def details_html(runs):
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    rows = {key: setting(key) for key in keys} | DETAILS
    text = row_html(["", *(run.name for run in runs)], "th")
    for key, value in rows.items():
        values = [value(run) for run in runs]
        differs = key in keys and len(set(values)) > 1
        text += row_html([key, *values], kind=' class="differs"' if differs else "")
    return text


def page_of(runs):
    first = runs[0]
    subtitle = "A byte-level GPT"
    if first.known("params") > 0:
        params = scaled(first.known("params"), ("", "k", "M", "G", "T"))
        subtitle += f" with {params} parameters"
    subtitle += f", {first.summary['steps']} steps"
    if (ranks := first.known("ranks")) > 0:
        subtitle += f" on {ranks:.0f} rank{'' if ranks == 1 else 's'}"
    several = f"Comparison of {len(runs)} runs"
    figures = draw_figures(runs)
    return PAGE.format(
        title=html.escape(f"Training with {first.name}" if len(runs) == 1 else several),
        subtitle=subtitle,
        results=row_html(["optimizer", *(c[0] for c in COLUMNS)], "th")
        + "".join(row_html([run.name, *cells(run)]) for run in runs),
        figures="".join(
            f"<figure><figcaption>{title}</figcaption>{svg}</figure>\n"
            for title, svg in figures
        ),
        details=details_html(runs),
        unsent="" if len(figures) == 4 else UNSENT,
    )


def warn(text):
    print(f"report.py: warning: {text}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path)
    parser.add_argument("--out", metavar="DIR", type=Path)
    given = parser.parse_args()
    if not given.out and len(given.runs) > 1:
        parser.error("several runs need --out DIR, the folder of their report.html")
    page = (given.out or given.runs[0]) / "report.html"
    try:
        runs = [read_run(folder) for folder in given.runs]
        name_runs(runs)
        text = page_of(runs)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
    except RunError as error:
        sys.exit(f"report.py: {error}")
    except OSError as error:
        sys.exit(f"report.py: {error.filename}: {error.strerror}")
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        names = ", ".join(map(str, given.runs))
        sys.exit(f"report.py: {names}: a value cannot be shown: {error}")
    print(f"{table_text(runs)}\nreport: {page}")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""What the study compares: one row, one way to train."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    name: str  # also its folder
    title: str
    flags: str
    dense: str  # the exact optimizer that it is measured against


def adam_rows(lr):
    dense = f"adam_{lr}"

    def row(name, title, flags):
        return Row(f"{name}_{lr}", f"{title}, lr {lr}", f"{flags} --lr {lr}", dense)

    onebit = "--optimizer onebit_adam"
    zero_one = "--optimizer zero_one_adam --local-steps 4"
    return [
        row("adam", "Adam", "--optimizer adam"),
        row("onebit_adam", "1-bit Adam", onebit),
        row("zero_one_adam", "0/1 Adam", zero_one),
        row(
            "onebit_adam_auto",
            "1-bit Adam, freeze auto",
            f"{onebit} --freeze-step auto",
        ),
        row("onebit_adam_rms", "1-bit Adam, clip by rms", f"{onebit} --clip-norm rms"),
        row(
            "zero_one_adam_rms", "0/1 Adam, clip by rms", f"{zero_one} --clip-norm rms"
        ),
        row(
            "onebit_adam_refresh",
            "1-bit Adam, refresh 16",
            f"{onebit} --variance-refresh 16",
        ),
    ]


def lamb_rows(lr):
    def rows(name, title, flags):
        flags = f"{flags} --lr {lr}"
        return [
            Row(
                f"lamb{name}",
                f"LAMB{title}, lr {lr}",
                f"--optimizer lamb {flags}",
                f"lamb{name}",
            ),
            Row(
                f"onebit_lamb{name}",
                f"1-bit LAMB{title}, lr {lr}",
                f"--optimizer onebit_lamb {flags}",
                f"lamb{name}",
            ),
        ]

    return [*rows("_clip", ", clip 1", "--clip 1"), *rows("", ", no clip", "--clip 0")]


def all_rows():
    """Those first on which most depends."""
    first, second, lamb = adam_rows("1.5e-3"), adam_rows("3e-3"), lamb_rows("1e-2")
    return [*first[:3], *lamb[:2], *first[3:], *lamb[2:], *second]

# SPDX-License-Identifier: Apache-2.0
"""The rows of the study; a row is one way to train."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    name: str  # also its folder
    title: str
    flags: str
    dense: str  # the exact optimizer, whose bytes are compared
    against: str = ""  # the row that its loss is compared with; empty for `dense`

    @property
    def baseline(self):
        return self.against or self.dense


# Two emulated hosts of two ranks each.
BY_HOST = "--set hierarchy=by_host --set ranks_per_host=2"
LOW_BIT_ZERO = "--optimizer adam --set zero_optimization.stage=2 --set zero_bits_up=4 --set zero_bits_down=4"

ZERO_ONE = "--optimizer zero_one_adam --set optimizer.params.local_step_clipper=4"


def warm_rows(name, title, flags, lr, dense, end=""):
    """Returns rows of a low-bit warm-up, to be compared with row `name` + `end`, whose
    warm-up is exact."""
    return [
        Row(
            f"{name}_warm{bits}{end}",
            f"{title}, warm-up over {bits} bits, lr {lr}",
            f"{flags} --lr {lr} --set warmup_bits={bits}",
            dense,
            f"{name}{end}",
        )
        for bits in (8, 4)
    ]


def low_bit_wire_rows(lr, lamb_lr):
    """Returns rows of low-bit ZeRO, in little memory, with lagged clipping, or
    hierarchical."""
    lamb = "--optimizer onebit_lamb --clip 1"

    def row(name, title, flags, against):
        return Row(
            f"{name}_{lr}",
            f"{title}, lr {lr}",
            f"{flags} --lr {lr}",
            f"adam_{lr}",
            f"{against}_{lr}",
        )

    def by_host(name, title, flags):
        return row(f"{name}_by_host", f"{title}, by host", f"{flags} {BY_HOST}", name)

    return [
        row("zero_4_4", "ZeRO-2, Adam, 4 bits", LOW_BIT_ZERO, "adam"),
        row(
            "zero_4_4_by_host",
            "ZeRO-2, Adam, 4 bits, by host",
            f"{LOW_BIT_ZERO} {BY_HOST}",
            "adam",
        ),
        row(
            "lean_onebit_adam",
            "Lean 1-bit Adam",
            "--optimizer lean_onebit_adam",
            "onebit_adam",
        ),
        *(
            one
            for name, title, flags in (
                ("onebit_adam", "1-bit Adam", "--optimizer onebit_adam"),
                ("zero_one_adam", "0/1 Adam", ZERO_ONE),
                (
                    "lean_onebit_adam",
                    "Lean 1-bit Adam",
                    "--optimizer lean_onebit_adam",
                ),
            )
            for one in warm_rows(name, title, flags, lr, f"adam_{lr}", f"_{lr}")
        ),
        *warm_rows(
            "onebit_lamb_clip", "1-bit LAMB, clip 1", lamb, lamb_lr, "lamb_clip"
        ),
        row(
            "onebit_adam_lagged",
            "1-bit Adam, lagged clipping",
            "--optimizer onebit_adam --set lagged_clipping=true",
            "onebit_adam",
        ),
        by_host("onebit_adam", "1-bit Adam", "--optimizer onebit_adam"),
        by_host("zero_one_adam", "0/1 Adam", ZERO_ONE),
        Row(
            "onebit_lamb_clip_by_host",
            f"1-bit LAMB, clip 1, by host, lr {lamb_lr}",
            f"{lamb} --lr {lamb_lr} {BY_HOST}",
            "lamb_clip",
            "onebit_lamb_clip",
        ),
    ]


def outer_rows(lr):
    """Returns rows of an outer loop, of 1-bit Adam if no other optimizer is named."""
    momentum = {"learning_rate": 0.7, "momentum": 0.6}
    rows = {
        "grows": ("1 to 16", {"sync_every": 16, "sync_growth": 75}),
        "5": ("5", {"sync_every": 5}),
        "5_exact": ("5, exact", {"sync_every": 5, "bits_up": 0, "bits_down": 0}),
        "15": ("15", {"sync_every": 15}),
        "15_momentum": ("15, momentum 0.6", {"sync_every": 15, **momentum}),
        "15_warm4": (
            "15, momentum 0.6, warm-up over 4 bits",
            {"sync_every": 15, "warmup_bits": 4, **momentum},
        ),
        "30_momentum": ("30, momentum 0.6", {"sync_every": 30, **momentum}),
        "60_momentum": ("60, momentum 0.6", {"sync_every": 60, **momentum}),
        "15_adam": (
            "15, momentum 0.6, Adam inside",
            {"sync_every": 15, "warmup_steps": 100, **momentum},
        ),
    }
    return [
        Row(
            f"outer_{name}_{lr}",
            f"Outer loop, interval {title}, lr {lr}",
            " ".join(
                (
                    f"--optimizer {'adam' if name.endswith('adam') else 'onebit_adam'}",
                    f"--lr {lr}",
                    *(f"--set outer.{key}={value}" for key, value in options.items()),
                )
            ),
            f"adam_{lr}",
        )
        for name, (title, options) in rows.items()
    ]


def adam_rows(lr):
    dense = f"adam_{lr}"

    def row(name, title, flags):
        return Row(f"{name}_{lr}", f"{title}, lr {lr}", f"{flags} --lr {lr}", dense)

    onebit = "--optimizer onebit_adam"
    return [
        row("adam", "Adam", "--optimizer adam"),
        row("onebit_adam", "1-bit Adam", onebit),
        row("zero_one_adam", "0/1 Adam", ZERO_ONE),
        row(
            "onebit_adam_auto",
            "1-bit Adam, freeze auto",
            f"{onebit} --freeze-step auto",
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
    """Returns the rows in order of importance."""
    first, second, lamb = adam_rows("1.5e-3"), adam_rows("3e-3"), lamb_rows("1e-2")
    wire = low_bit_wire_rows("1.5e-3", "1e-2")
    outer = outer_rows("1.5e-3")
    return [*first[:3], *lamb[:2], *wire, *outer, *first[3:], *lamb[2:], *second]

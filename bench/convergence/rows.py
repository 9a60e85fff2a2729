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


# Title and flags of Adam's kind.
WAYS = {
    "adam": ("Adam", "--optimizer adam"),
    "onebit_adam": ("1-bit Adam", "--optimizer onebit_adam"),
    "zero_one_adam": (
        "0/1 Adam",
        "--optimizer zero_one_adam --set optimizer.params.local_step_clipper=4",
    ),
    "lean_onebit_adam": ("Lean 1-bit Adam", "--optimizer lean_onebit_adam"),
    "zero_4_4": (
        "ZeRO-2, Adam, 4 bits",
        (
            "--optimizer adam --set zero_optimization.stage=2"
            " --set zero_bits_up=4 --set zero_bits_down=4"
        ),
    ),
}

# Ends of a row's name and title, and more flags.
PLAIN = ("", "", "")
AUTO = ("_auto", ", freeze auto", " --freeze-step auto")
LAGGED = ("_lagged", ", lagged clipping", " --set lagged_clipping=true")
WARM = [
    (f"_warm{bits}", f", warm-up over {bits} bits", f" --set warmup_bits={bits}")
    for bits in (8, 4)
]
# Two emulated hosts of two ranks each.
BY_HOST = (
    "_by_host",
    ", by host",
    " --set hierarchy=by_host --set ranks_per_host=2",
)


def adam_row(lr, way, change=PLAIN, against=""):
    """Returns a row; `against` is a way, and empty for Adam."""
    (title, flags), (end, more_title, more) = WAYS[way], change
    return Row(
        f"{way}{end}_{lr}",
        f"{title}{more_title}, lr {lr}",
        f"{flags}{more} --lr {lr}",
        f"adam_{lr}",
        f"{against}_{lr}" if against else "",
    )


def lamb_row(lr, way, clip, change=PLAIN, against=""):
    """Returns a row of LAMB or 1-bit LAMB; `against` is a row, and empty for LAMB."""
    (name, title, norm), (end, more_title, more) = clip, change
    return Row(
        f"{way}{name}{end}",
        f"{'LAMB' if way == 'lamb' else '1-bit LAMB'}{title}{more_title}, lr {lr}",
        f"--optimizer {way} --clip {norm}{more} --lr {lr}",
        f"lamb{name}",
        against,
    )


CLIP, NO_CLIP = ("_clip", ", clip 1", 1), ("", ", no clip", 0)


def low_bit_wire_rows(lr, lamb_lr):
    """Returns rows of low-bit ZeRO, in little memory, with lagged clipping, or
    hierarchical."""

    def lamb(change):
        return lamb_row(lamb_lr, "onebit_lamb", CLIP, change, "onebit_lamb_clip")

    return [
        adam_row(lr, "zero_4_4"),
        adam_row(lr, "zero_4_4", BY_HOST),
        adam_row(lr, "lean_onebit_adam", PLAIN, "onebit_adam"),
        *(
            adam_row(lr, way, warm, way)
            for way in ("onebit_adam", "zero_one_adam", "lean_onebit_adam")
            for warm in WARM
        ),
        *map(lamb, WARM),
        adam_row(lr, "onebit_adam", LAGGED, "onebit_adam"),
        adam_row(lr, "onebit_adam", BY_HOST, "onebit_adam"),
        adam_row(lr, "zero_one_adam", BY_HOST, "zero_one_adam"),
        lamb(BY_HOST),
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


def all_rows():
    """Returns the rows in order of importance."""
    first, second = (
        [
            *(adam_row(lr, way) for way in ("adam", "onebit_adam", "zero_one_adam")),
            adam_row(lr, "onebit_adam", AUTO),
        ]
        for lr in ("1.5e-3", "3e-3")
    )
    clipped, unclipped = (
        [lamb_row("1e-2", way, clip) for way in ("lamb", "onebit_lamb")]
        for clip in (CLIP, NO_CLIP)
    )
    wire = low_bit_wire_rows("1.5e-3", "1e-2")
    outer = outer_rows("1.5e-3")
    return [*first[:3], *clipped, *wire, *outer, *first[3:], *unclipped, *second]

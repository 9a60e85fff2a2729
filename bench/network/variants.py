# SPDX-License-Identifier: Apache-2.0
"""The variants to train, by torch DDP in ddp.py and by Thinwire in
network_steps.cpp."""

NAMES = {
    "ddp_fp32": "torch DDP, fp32",
    "ddp_bf16": "torch DDP, bf16 hook",
    "ddp_hook8": "torch DDP, thinwire.ddp_hook, 8 bits",
    "ddp_hook4": "torch DDP, thinwire.ddp_hook, 4 bits",
    "ddp_powersgd1": "torch DDP, PowerSGD rank 1",
    "ddp_powersgd4": "torch DDP, PowerSGD rank 4",
    "adam": "Thinwire, Adam (exact)",
    "adam_serial": "Thinwire, Adam (exact), without overlap",
    "zero_adam": "Thinwire, ZeRO-2, Adam (exact)",
    "zero_adam_serial": "Thinwire, ZeRO-2, Adam (exact), without overlap",
    "zero_4_4": "Thinwire, ZeRO-2, Adam, 4 bits",
    "onebit_adam": "Thinwire, 1-bit Adam",
    "onebit_adam_warm8": "Thinwire, 1-bit Adam, warm-up over 8 bits",
    "onebit_adam_warm4": "Thinwire, 1-bit Adam, warm-up over 4 bits",
    "onebit_adam_early": "Thinwire, 1-bit Adam, during backward",
    "lean_onebit_adam": "Thinwire, lean 1-bit Adam",
    "onebit_lamb": "Thinwire, 1-bit LAMB",
    "zero_one_adam": "Thinwire, 0/1 Adam",
    "outer_15": "Thinwire, outer loop, interval 15",
    "outer_grows": "Thinwire, outer loop, interval 1 to 16",
    "python_onebit_adam": "Thinwire, 1-bit Adam, Python",
    "exchange": "1-bit Adam without forward and backward",
}
# The argument of network_steps, if it is not the name.
FEW_BITS = "zero_bits_up=4+zero_bits_down=4"
TOLD = {
    "adam_serial": "adam+overlap=false",
    "zero_adam": "adam+zero=2",
    "zero_adam_serial": "adam+zero=2+overlap=false",
    "zero_4_4": f"adam+zero=2+{FEW_BITS}",
    "onebit_adam_early": (
        "onebit_adam+lagged_clipping=true+compressed_during_backward=true"
    ),
    "exchange": "exchange:onebit_adam",
} | {
    # This is a step of the warm-up.
    f"onebit_adam_warm{bits}": (
        f"onebit_adam+warmup_bits={bits}+optimizer.params.freeze_step=100000"
    )
    for bits in (8, 4)
}

# Forward, backward and exact Adam's update, in a group of one.
COMPUTING = "computing"
DENSE = (
    "ddp_fp32",
    "ddp_bf16",
    "adam",
    "adam_serial",
    "zero_adam",
    "zero_adam_serial",
)
COMPRESSED = (
    "ddp_hook8",
    "ddp_hook4",
    "ddp_powersgd1",
    "ddp_powersgd4",
    "zero_4_4",
    "onebit_adam_warm8",
    "onebit_adam_warm4",
    "onebit_adam",
    "onebit_adam_early",
    "lean_onebit_adam",
    "onebit_lamb",
    "zero_one_adam",
    "python_onebit_adam",
)
# These steps are called exact, although their exchange is low-bit, because their Adam
# is exact.
CALLED_EXACT = ("zero_4_4", "onebit_adam_warm8", "onebit_adam_warm4")
# These send a byte or half a byte for each element.
SEVERAL_BITS = (*CALLED_EXACT, "ddp_hook8", "ddp_hook4")
ALL = (*DENSE, *COMPRESSED)

# The names in `thinwire plan`.
PLANNED = {
    "exact": "adam",
    "onebit_adam": "onebit_adam",
    "zero_one_adam": "zero_one_adam",
    "zero": "zero_adam",
    "zero 4/4": "zero_4_4",
    "lean": "lean_onebit_adam",
}

# The same for whole runs, which the plan begins with a warm-up over 8 bits.
PLANNED_RUNS = {
    "exact": "ddp_fp32",
    "onebit_adam": "onebit_adam_warm8",
    "zero": "zero_adam",
    "zero 4/4": "zero_4_4",
}

# A whole run has this many steps. One that ends above the loss of its peer continues at
# the last learning rate, up to the longest.
STEPS, LONGEST = 400, 600
# It validates after so many steps each, on so many bytes of held-out text.
VALIDATE_EVERY, VALIDATION_BYTES = 40, 16_384

# Whole runs are made in these ways. The first is the one that all others are compared
# with. Some are also made in full over a slow link.
OF_A_RUN = (
    "ddp_fp32",
    "ddp_bf16",
    "ddp_hook8",
    "ddp_hook4",
    "ddp_powersgd4",
    "zero_adam",
    "zero_4_4",
    "onebit_adam",
    "onebit_adam_warm8",
    "onebit_adam_warm4",
    "zero_one_adam",
)
PEER = OF_A_RUN[0]
IN_FULL = ("ddp_fp32", "zero_4_4", "onebit_adam_warm8")
# A run's exact and compressed steps take what a step of these variants takes, if that is
# not the variant's own.
EXACT_STEPS = {
    "ddp_powersgd4": "ddp_fp32",
    "onebit_adam": "adam",
    "zero_one_adam": "adam",
}
COMPRESSED_STEPS = dict.fromkeys(
    ("onebit_adam_warm8", "onebit_adam_warm4", "zero_one_adam"), "onebit_adam"
)
# Flags of train_gpt for a run.
RUN_FLAGS = {
    "zero_adam": "adam+zero_optimization.stage=2",
    "zero_4_4": f"adam+zero_optimization.stage=2+{FEW_BITS}",
    "onebit_adam_warm8": "onebit_adam+warmup_bits=8",
    "onebit_adam_warm4": "onebit_adam+warmup_bits=4",
    "outer_15": (
        "onebit_adam+outer.sync_every=15+outer.learning_rate=0.7+outer.momentum=0.6"
    ),
    "outer_grows": "onebit_adam+outer.sync_every=16+outer.sync_growth=150",
}

# Longer runs, made in full over one slow link.
OF_A_SLOW_RUN = ("outer_15", "onebit_adam_warm8", "outer_grows", "zero_4_4")

# On hosts of several ranks each variant is measured flat and hierarchically.
FLAT, BY_HOST = "_flat", "_by_host"
ON_HOSTS = ("exchange", "adam", "onebit_adam", "zero_4_4")

# Steps until every variant is in the measured stage. Low-bit variants have a hundred
# exact steps before (network_steps.cpp, ddp.py).
WARM_STEPS = {"zero_one_adam": 116}
WARM_STEPS_OF_COMPRESSED, WARM_STEPS_OF_OTHERS = 104, 6


def base(variant):
    """Returns the variant without its suffix for hosts."""
    return variant.removesuffix(FLAT).removesuffix(BY_HOST)


def told(variant):
    """Returns the name for network_steps. On hosts of several ranks the exchange is
    hierarchical unless the variant is flat."""
    text = TOLD.get(base(variant), base(variant))
    return f"{text}+hierarchy=flat" if variant.endswith(FLAT) else text


def run_flags(variant):
    """Returns the flags with which train_gpt makes a run in this way."""
    optimizer, *settings = RUN_FLAGS.get(variant, variant).split("+")
    return ["--optimizer", optimizer, *(f"--set={text}" for text in settings)]


def title(variant):
    where = {FLAT: ", flat", BY_HOST: ", by host"}
    suffix = variant.removeprefix(base(variant))
    return NAMES[base(variant)] + where.get(suffix, "")


def owner(variant):
    """Returns the program that trains it."""
    return "python" if variant.startswith(("ddp", "python")) else "thinwire"


def warm_steps(variant):
    others = WARM_STEPS_OF_OTHERS
    if must_be_compressed(variant) and not variant.startswith("ddp"):
        others = WARM_STEPS_OF_COMPRESSED
    return WARM_STEPS.get(base(variant), others)


def steps_of(variant, mbit, ranks):
    """Returns the steps in a row, fewer if they take long. 0/1 Adam takes whole turns
    of a sync and three local steps."""
    kind = 2
    if base(variant) in DENSE:
        kind = 0
    elif base(variant) in SEVERAL_BITS:
        kind = 1
    steps = {25: (1, 2, 4), 100: (2, 4, 4), 1000: (4, 8, 8)}.get(mbit, (8, 8, 8))
    return steps[kind] * 2 // ranks


def is_compressed(variant):
    return base(variant) in (*COMPRESSED, "exchange")


def must_be_compressed(variant):
    """Returns whether none of its steps may be exact."""
    return is_compressed(variant) and base(variant) not in CALLED_EXACT

# SPDX-License-Identifier: Apache-2.0
"""The variants to train, by torch DDP in ddp.py and by Thinwire in
network_steps.cpp."""

from dataclasses import dataclass

DENSE, SEVERAL_BITS, ONE_BIT = range(3)  # what steps send; fewer are made if it is much


@dataclass(frozen=True)
class Way:
    title: str
    kind: int = ONE_BIT
    # OPTIMIZER+KEY=VALUE... with train_gpt's keys, of a step and of a run; by default
    # the name, and what a step has.
    step: str = ""
    run: str = ""
    # These steps are called exact, although their exchange is low-bit, because their
    # Adam is exact.
    called_exact: bool = False
    # Ways whose times stand for kinds of steps in a run. These are one of the first
    # steps, an exchange, and the mean of an exchange and three local steps. The default
    # is the way itself.
    first: str = ""
    exchange: str = ""
    turn: str = ""
    # Number of first steps of a run, unless its program names their kind.
    first_steps: int = 0
    # Whether a picture shows its runs, which then are made for several seeds.
    is_shown: bool = False


def warm_up(bits, **more):
    run = f"onebit_adam+warmup_bits={bits}"
    return Way(
        f"Thinwire, 1-bit Adam, warm-up over {bits} bits",
        SEVERAL_BITS,
        f"{run}+optimizer.params.freeze_step=100000",  # so it is a step of the warm-up
        run,
        True,
        exchange="onebit_adam",
        **more,
    )


def powersgd(rank, **more):
    title = f"torch DDP, PowerSGD rank {rank}, bf16 factors"
    return Way(title, first="ddp_bf16", first_steps=10, **more)


def local_adam(interval, kind=ONE_BIT, **more):
    often = "in every step" if interval == 1 else f"every {interval} steps"
    return Way(
        f"local Adam, bf16 averages {often}",
        kind,
        first="ddp_bf16",
        exchange="local_adam1",
        turn="local_adam4",
        first_steps=10,
        **more,
    )


def low_rank(rank, **more):
    return Way(
        f"Thinwire, Adam, low rank {rank}",
        step=f"adam+low_rank={rank}+first_steps=20",
        called_exact=True,
        first="onebit_adam_warm4",
        first_steps=20,
        **more,
    )


def outer(interval, kind=ONE_BIT, **more):
    settings = "outer.warmup_steps=10+outer.warmup_bits=4"
    return Way(
        f"Thinwire, outer loop, Adam inside, interval {interval}",
        kind,
        f"adam+outer.sync_every={interval}+{settings}",
        first="onebit_adam_warm4",
        exchange="outer_1",
        turn="outer_4",
        **more,
    )


STAGE_2 = "adam+zero_optimization.stage=2"
WAYS = {
    "ddp_fp32": Way("torch DDP, fp32", DENSE, is_shown=True),
    "ddp_bf16": Way("torch DDP, bf16 hook", DENSE),
    "ddp_bf16_accumulate2": Way(
        "torch DDP, bf16 hook, accumulation of 2", SEVERAL_BITS
    ),
    "ddp_powersgd1": powersgd(1),
    "ddp_powersgd4": powersgd(4, is_shown=True),
    "ddp_powersgd8": powersgd(8, is_shown=True),
    "local_adam1": local_adam(1, DENSE),
    "local_adam4": local_adam(4),
    "local_adam8": local_adam(8),
    "local_adam16": local_adam(16, is_shown=True),
    "ddp_hook8": Way("torch DDP, thinwire.ddp_hook, 8 bits", SEVERAL_BITS),
    "ddp_hook4": Way(
        "torch DDP, thinwire.ddp_hook, 4 bits", SEVERAL_BITS, is_shown=True
    ),
    "ddp_low_rank8": Way(
        "torch DDP, thinwire.ddp_hook, low rank 8",
        first="ddp_hook4",
        first_steps=20,
        is_shown=True,
    ),
    "adam": Way("Thinwire, Adam (exact)", DENSE),
    "adam_serial": Way(
        "Thinwire, Adam (exact), without overlap", DENSE, "adam+overlap=false"
    ),
    "low_rank8": low_rank(8, is_shown=True),
    "low_rank32": low_rank(32),
    "zero_adam": Way("Thinwire, ZeRO-2, Adam (exact)", DENSE, STAGE_2),
    "zero_adam_serial": Way(
        "Thinwire, ZeRO-2, Adam (exact), without overlap",
        DENSE,
        f"{STAGE_2}+overlap=false",
    ),
    "zero_4_4": Way(
        "Thinwire, ZeRO-2, Adam, 4 bits",
        SEVERAL_BITS,
        f"{STAGE_2}+zero_bits_up=4+zero_bits_down=4",
        called_exact=True,
        is_shown=True,
    ),
    "onebit_adam": Way("Thinwire, 1-bit Adam", first="adam"),
    "onebit_adam_warm8": warm_up(8),
    "onebit_adam_warm4": warm_up(4, is_shown=True),
    "onebit_adam_under": Way(
        "Thinwire, 1-bit Adam, under the next step",
        step="onebit_adam+compressed_under_next_step=true",
        run="onebit_adam+warmup_bits=4+compressed_under_next_step=true",
        first="onebit_adam_warm4",
    ),
    "lean_onebit_adam": Way("Thinwire, lean 1-bit Adam"),
    "onebit_lamb": Way("Thinwire, 1-bit LAMB"),
    "zero_one_adam": Way(
        "Thinwire, 0/1 Adam",
        first="adam",
        exchange="onebit_adam",
        turn="zero_one_adam",
    ),
    "python_onebit_adam": Way("Thinwire, 1-bit Adam, Python"),
    "outer_1": outer(1, SEVERAL_BITS),
    "outer_4": outer(4),
    "outer_8": outer(8, is_shown=True),
    "outer_16": outer(16),
}
# Steps of other ways say what theirs take.
NO_STEPS = ("local_adam8", "local_adam16", "outer_8", "outer_16")
ALL = tuple(way for way in WAYS if way not in NO_STEPS)
WAYS |= {
    "zero_one_adam_warm4": Way(
        "Thinwire, 0/1 Adam, variance over 4 bits",
        run="zero_one_adam+warmup_bits=4+optimizer.params.var_update_scaler=8",
        first="onebit_adam_warm4",
        exchange="onebit_adam",
        turn="zero_one_adam",
        is_shown=True,
    ),
    "outer_15": Way(
        "Thinwire, outer loop, interval 15",
        run="onebit_adam+outer.sync_every=15+outer.learning_rate=0.7+outer.momentum=0.6",
    ),
    "outer_grows": Way(
        "Thinwire, outer loop, interval 1 to 16",
        run="onebit_adam+outer.sync_every=16+outer.sync_growth=150",
    ),
    "exchange": Way(
        "1-bit Adam without forward and backward", step="exchange:onebit_adam"
    ),
}

# Forward, backward and exact Adam's update, in a group of one.
COMPUTING = "computing"
# The names in `thinwire plan`.
PLANNED = {
    "exact": "adam",
    "onebit_adam": "onebit_adam",
    "zero_one_adam": "zero_one_adam",
    "zero": "zero_adam",
    "zero 4/4": "zero_4_4",
    "lean": "lean_onebit_adam",
}

# Ways of whole runs, which the plan begins with a warm-up over 8 bits.
PLANNED_RUNS = {
    "exact": "ddp_fp32",
    "onebit_adam": "onebit_adam_warm8",
    "zero": "zero_adam",
    "zero 4/4": "zero_4_4",
}

# A whole run has this many steps, unless another number is given.
STEPS = 400
# Steps between validations, and bytes of held-out text in each.
VALIDATE_EVERY, VALIDATION_BYTES = 40, 16_384

# Runs for losses are made in these ways. The first is the one that all others are
# compared with. Some are also made in full over a slow link.
OF_A_RUN = (
    "ddp_fp32",
    "ddp_bf16",
    "ddp_bf16_accumulate2",
    "ddp_powersgd1",
    "ddp_powersgd4",
    "ddp_powersgd8",
    "local_adam8",
    "local_adam16",
    "ddp_hook8",
    "ddp_hook4",
    "ddp_low_rank8",
    "low_rank8",
    "low_rank32",
    "zero_adam",
    "zero_4_4",
    "onebit_adam",
    "onebit_adam_warm8",
    "onebit_adam_warm4",
    "onebit_adam_under",
    "zero_one_adam",
    "zero_one_adam_warm4",
    "outer_4",
    "outer_8",
    "outer_16",
)
PEER = OF_A_RUN[0]
IN_FULL = ("ddp_fp32", "low_rank8", "onebit_adam_warm8")
SEEDS = (1, 2, 3)  # of runs that a picture shows; others have the first

# Longer runs, made in full over one slow link.
OF_A_SLOW_RUN = ("outer_15", "onebit_adam_warm8", "outer_grows", "zero_4_4")

# On hosts of several ranks each variant is measured flat and hierarchically.
FLAT, BY_HOST = "_flat", "_by_host"
ON_HOSTS = ("exchange", "adam", "onebit_adam", "zero_4_4")

# Steps until every variant is in the measured stage. Low-bit variants have a hundred
# exact steps before (network_steps.cpp, ddp.py).
WARM_STEPS = {"zero_one_adam": 116, "low_rank8": 26, "low_rank32": 26}
WARM_STEPS_OF_COMPRESSED, WARM_STEPS_OF_OTHERS = 104, 6


def longest(steps):
    """Returns the steps up to which a run that ends above the loss of its peer
    continues, at the last learning rate."""
    return steps * 3 // 2


def base(variant):
    """Returns the variant without its suffix for hosts."""
    return variant.removesuffix(FLAT).removesuffix(BY_HOST)


def told(variant):
    """Returns the name for network_steps. On hosts of several ranks the exchange is
    hierarchical unless the variant is flat."""
    text = WAYS[base(variant)].step if base(variant) in WAYS else ""
    text = text or base(variant)
    return f"{text}+hierarchy=flat" if variant.endswith(FLAT) else text


def run_flags(variant):
    """Returns the flags with which train_gpt makes a run in this way."""
    way = WAYS[variant]
    optimizer, *settings = (way.run or way.step or variant).split("+")
    return ["--optimizer", optimizer, *(f"--set={text}" for text in settings)]


def title(variant):
    where = {FLAT: ", flat", BY_HOST: ", by host"}
    suffix = variant.removeprefix(base(variant))
    return WAYS[base(variant)].title + where.get(suffix, "")


def owner(variant):
    """Returns the program that trains it."""
    is_pythons = variant.startswith(("ddp", "local", "python"))
    return "python" if is_pythons else "thinwire"


def warm_steps(variant):
    others = WARM_STEPS_OF_OTHERS
    if must_be_compressed(variant) and not variant.startswith(("ddp", "local")):
        others = WARM_STEPS_OF_COMPRESSED
    return WARM_STEPS.get(base(variant), others)


def steps_of(variant, mbit, ranks):
    """Returns the steps in a row, fewer if they take long. Ways with local steps take
    whole turns of a sync and three of them."""
    steps = {25: (1, 2, 4), 100: (2, 4, 4), 1000: (4, 8, 8)}.get(mbit, (8, 8, 8))
    kind = ONE_BIT if variant == COMPUTING else WAYS[base(variant)].kind
    return steps[kind] * 2 // ranks


def is_compressed(variant):
    return variant != COMPUTING and WAYS[base(variant)].kind != DENSE


def must_be_compressed(variant):
    """Returns whether none of its steps may be exact."""
    return is_compressed(variant) and not WAYS[base(variant)].called_exact

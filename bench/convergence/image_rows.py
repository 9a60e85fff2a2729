# SPDX-License-Identifier: Apache-2.0
"""How image_classifier trains: a configuration file for each way. Settings are the same
in all, except that Adam's and LAMB's kind have learning rates of their own."""

from dataclasses import dataclass, field, replace

ADAM_LR, LAMB_LR = 2e-3, 1e-2
BY_HOST = {"hierarchy": "by_host", "ranks_per_host": 2}  # two emulated hosts


@dataclass(frozen=True)
class Row:
    name: str  # also its folder
    title: str
    optimizer: str  # of the configuration file
    dense: str  # the exact optimizer, whose bytes are compared
    against: str = ""  # the row that it is compared with; empty for `dense`
    own: dict = field(default_factory=dict)  # keys of the object "thinwire"
    zero_stage: int = 0

    @property
    def baseline(self):
        return self.against or self.dense


def config(row, steps):
    """Returns the configuration file of a run of `steps` steps."""
    freeze = {"freeze_step": steps // 5}
    params = {
        "OneBitAdam": freeze,
        "OneBitLamb": freeze,
        "ZeroOneAdam": {
            "var_freeze_step": steps // 2,
            "local_step_scaler": steps * 12 // 100,
            "local_step_clipper": 4,
        },
    }
    lr = LAMB_LR if row.optimizer.lower().endswith("lamb") else ADAM_LR
    return {
        "train_micro_batch_size_per_gpu": 32,
        "optimizer": {
            "type": row.optimizer,
            "params": {"lr": lr, "betas": [0.9, 0.99], **params.get(row.optimizer, {})},
        },
        "scheduler": {
            "type": "WarmupCosineLR",
            "params": {
                "total_num_steps": steps,
                "warmup_num_steps": steps // 10,
                "warmup_type": "linear",
                "cos_min_ratio": 0.1,
            },
        },
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": row.zero_stage},
        # In the test, statistics of the normalisation are the ranks' mean.
        "thinwire": {"buffers": "average", **row.own},
    }


def by_host(row, against):
    return replace(
        row,
        name=f"{row.name}_by_host",
        title=f"{row.title}, by host",
        against=against,
        own={**row.own, **BY_HOST},
    )


def warm_up(row, bits):
    """Returns the row with a low-bit warm-up, to be compared with an exact one."""
    return replace(
        row,
        name=f"{row.name}_warm{bits}",
        title=f"{row.title}, warm-up over {bits} bits",
        against=row.name,
        own={**row.own, "warmup_bits": bits},
    )


def all_rows():
    onebit_adam = Row("onebit_adam", "1-bit Adam", "OneBitAdam", "adam")
    zero_one = Row("zero_one_adam", "0/1 Adam", "ZeroOneAdam", "adam")
    onebit_lamb = Row("onebit_lamb", "1-bit LAMB", "OneBitLamb", "lamb")
    low_bit_zero = Row(
        "zero_4_4",
        "ZeRO-2, Adam, 4 bits",
        "Adam",
        "adam",
        own={"zero_bits_up": 4, "zero_bits_down": 4},
        zero_stage=2,
    )
    lean = Row(
        "lean_onebit_adam",
        "Lean 1-bit Adam",
        "OneBitAdam",
        "adam",
        against="onebit_adam",
        own={"lean": True},
    )
    flat = (onebit_adam, zero_one, onebit_lamb)
    return [
        Row("adam", "Adam", "Adam", "adam"),
        onebit_adam,
        zero_one,
        Row("lamb", "LAMB", "Lamb", "lamb"),
        onebit_lamb,
        low_bit_zero,
        by_host(low_bit_zero, "adam"),
        lean,
        *(by_host(row, row.name) for row in flat),
        *(warm_up(row, bits) for row in flat for bits in (8, 4)),
    ]

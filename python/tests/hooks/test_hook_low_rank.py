# SPDX-License-Identifier: Apache-2.0
"""thinwire.ddp_hook with low_rank: the bits of the native average, its state beside that of
bits, refusals, ranks that are lost during each of the two exchanges."""

from __future__ import annotations

import copy
import logging
import os
import signal
from contextlib import nullcontext
from typing import Any

import hook_cases as cases
import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from thinwire import _core
from thinwire.comm import communicator_for

STEPS = 5
RANK = {"low_rank": 2, "first_steps": 2}


class Pictures(torch.nn.Module):
    """Convolutions, one with factors, and a matrix; most have buckets of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Conv2d(3, 16, 3)
        self.two = torch.nn.Conv2d(16, 24, 3)
        self.out = torch.nn.Linear(24 * 4, 40)
        self.last = torch.nn.Linear(40, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.two(self.one(x).tanh()).tanh()
        return self.last(self.out(hidden.flatten(1)).tanh())


def pictures(dtype: torch.dtype = torch.float32) -> Pictures:
    torch.manual_seed(3)
    net = Pictures().to(dtype)
    return net.to(memory_format=torch.channels_last)


def loss_of(module: Any, rank: int, step: int, scale: float) -> torch.Tensor:
    random = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(2, 3, 6, 6, generator=random).to(next(module.parameters()).dtype)
    return scale * module(x).square().mean()


# Options of DDP, loss scale, backwards of a step, dtype, and options of the hook.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one bucket": {"ddp": {"bucket_cap_mb": 25}},
    "views": {"ddp": {"gradient_as_bucket_view": True, "static_graph": True}},
    "accumulated": {"backwards": 2, "scale": 4096.0},
    "bfloat16": {"dtype": "bfloat16", "scale": 2.0},
    "named": {"hook": {"plain": ["two.*", "last.weight"]}},
}


def compare(rank: int, name: str) -> dict[str, Any]:
    """Gradients of the hook, beside those of the native average of all of them at once."""
    case = CASES[name]
    scale, backwards = case.get("scale", 1.0), case.get("backwards", 1)
    net = pictures(getattr(torch, case.get("dtype", "float32")))
    local = copy.deepcopy(net)
    ddp = cases.wrapped(net, **case.get("ddp", {}))
    hook = thinwire.ddp_hook(ddp, **RANK, **case.get("hook", {}))
    hook.set_loss_scale(scale)
    shapes = {n: p.shape for n, p in net.named_parameters()}
    as_matrices = [
        (s[0], s[1:].numel())
        if len(s) > 1 and not (name == "named" and n[:5] in ("two.w", "last."))
        else (s.numel(), 1)
        for n, s in shapes.items()
    ]
    mean = _core.LowRankMean(
        communicator_for(dist.group.WORLD), as_matrices, 2, 2, 4, _core.Hierarchy.auto
    )
    wrong = []
    for step in range(STEPS):
        ddp.zero_grad()
        local.zero_grad()
        for part in range(backwards):
            with nullcontext() if part == backwards - 1 else ddp.no_sync():
                loss_of(ddp, rank, 10 * step + part, scale).backward()
            loss_of(local, rank, 10 * step + part, scale).backward()
        values = torch.cat([g.flatten() for g in cases.gradients_of(local)])
        assert not mean.begin(values, list(range(len(shapes))), scale)
        assert mean.finish() == [True]
        own = torch.cat([g.flatten() for g in cases.gradients_of(ddp)])
        if not torch.equal(own, values):
            wrong.append(f"step {step}")
        with torch.no_grad():
            for ours, theirs in zip(net.parameters(), local.parameters(), strict=True):
                theirs.copy_(ours.sub_(0.1 / scale * ours.grad))
    state = hook.state_dict()
    worker, (host, _) = torch.from_dlpack(mean.worker_error()), mean.hosts
    rows = torch.cat([v.flatten(1) for v in state["worker"].values()], 1)
    if not torch.equal(rows[host] * (worker != 0), worker):
        wrong.append("worker")
    factors = torch.cat([v.flatten() for v in state["factors"].values()])
    if not torch.equal(factors, torch.from_dlpack(mean.factors())):
        wrong.append("factors")
    found = {
        "wrong": wrong,
        "factors": {n: list(f.shape) for n, f in state["factors"].items()},
        "passes": int(state["first_passes"]),
        "text": str(hook),
        "sent": hook.report.bytes_sent == mean.bytes_per_pass,
    }
    hook.close()
    return found


def train(names: list[str]) -> list[dict[str, Any]]:
    """All of them in the same processes, because starting those takes the longest."""
    rank, _ = cases.join()
    results = [compare(rank, name) for name in names]
    dist.destroy_process_group()
    return results


@pytest.mark.parametrize(
    ("n", "names", "env"),
    [
        (2, list(CASES), {}),
        (3, ["plain"], {}),
        (4, ["plain"], {"THINWIRE_RANKS_PER_HOST": "2"}),
    ],
    ids=["2", "3", "2x2"],
)
def test_bits_of_the_native_average(
    n: int, names: list[str], env: dict[str, str]
) -> None:
    for own in ranks.results(n, __file__, "train", names, seconds=100, env=env):
        for name, found in zip(names, own, strict=True):
            assert found["wrong"] == [], name
            assert found["passes"] == 2, name
            assert found["sent"] or "hosts" in found["text"], name
            want = {
                "two.weight": [2, 144],
                "out.weight": [2, 96],
                "last.weight": [2, 40],
            }
            if name == "named":
                del want["two.weight"], want["last.weight"]
            assert found["factors"] == {"one.weight": [2, 27], **want}
            assert "low rank 2 after 2 backwards in 4 bits" in found["text"]


def owed(state: dict[str, Any]) -> torch.Tensor:
    return torch.cat(
        [
            (worker.double().mean(0) + state["server"][name].double()).flatten()
            for name, worker in state["worker"].items()
        ]
    )


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        logging.getLogger("thinwire").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def other_averages() -> list[str]:
    """Returns what is wrong when states of bits and of factors change places."""
    rank, _ = cases.join()
    wrong, lines = [], Lines()

    def hook_of(**options: Any) -> tuple[Any, Any]:
        ddp = cases.wrapped(pictures())
        return ddp, thinwire.ddp_hook(ddp, **options)

    def trained(ddp: Any, steps: range) -> list[torch.Tensor]:
        for step in steps:
            ddp.zero_grad()
            loss_of(ddp, rank, step, 1.0).backward()
        return cases.gradients_of(ddp)

    for name, of, to, text in (
        ("bits", {"bits": 4}, RANK, "the state has no factors"),
        ("factors", RANK, {"bits": 4}, "the state's factors are left out"),
        ("bf16", RANK, {"bits": 8, "residual_dtype": torch.bfloat16}, "left out"),
    ):
        ddp, hook = hook_of(**of)
        trained(ddp, range(3))
        state = hook.state_dict()
        other, into = hook_of(**to)
        if name == "bits":
            trained(other, range(4))  # has factors and passes that must begin anew
        into.load_state_dict(state)
        now = into.state_dict()
        off = float((owed(now) - owed(state)).abs().max())
        if off > (0.01 if name == "bf16" else 0) * float(owed(state).abs().max()):
            wrong.append(f"{name}: residuals differ by {off}")
        if (rank == 0) != any(text in line for line in lines.texts):
            wrong.append(f"{name}: {lines.texts}")
        if name == "bits":
            new, fresh = hook_of(**to)
            first = fresh.state_dict()
            if int(now["first_passes"]) or any(
                not torch.equal(now[part][key], first[part][key])
                for part in ("factors", "generators")
                for key in first[part]
            ):
                wrong.append("factors do not begin anew")
            fresh.load_state_dict(state)
            if not all(
                map(torch.equal, trained(other, range(4)), trained(new, range(4)))
            ):
                wrong.append("runs differ")
            fresh.close()
        lines.texts.clear()
        hook.close()
        into.close()
    dist.destroy_process_group()
    return wrong


def test_states_of_bits_and_of_factors_are_loaded_by_each_other() -> None:
    assert ranks.results(2, __file__, "other_averages") == [[], []]


def refusals() -> list[str]:
    """Returns what differs from what is expected."""
    rank, _ = cases.join()
    others: list[str] = []

    def refuse(text: str, body: Any, kind: str = "InvalidArgument") -> None:
        told = ranks.failure_of(body)
        if text not in told or not told.startswith(kind):
            others.append(f"{text}: {told}")

    ddp = cases.wrapped(pictures())
    for text, options in (
        ("bits must be left out with low_rank, got bits=8", {"bits": 8, "low_rank": 4}),
        ("low_rank must be in [1, 64], or 0, got 65", {"low_rank": 65}),
        ("low_rank must be in [1, 64], or 0, got -1", {"low_rank": -1}),
        ("low_rank must be in [1, 64], or 0, got 8.0", {"low_rank": 8.0}),
        (
            "first_steps must be in [0, 2^63), got -1",
            {"low_rank": 8, "first_steps": -1},
        ),
        ("first_bits must be 4 or 8, got 1", {"low_rank": 8, "first_bits": 1}),
        (
            "residual_dtype must be float32 with low_rank",
            {"low_rank": 8, "residual_dtype": torch.bfloat16},
        ),
        ("first_steps must be left out without low_rank, got 5", {"first_steps": 5}),
        (
            "first_bits must be left out without low_rank, got 8",
            {"bits": 4, "first_bits": 8},
        ),
        ("plain must be left out without low_rank, got ['a']", {"plain": ["a"]}),
        (
            "plain must be names, got 'two.weight'",
            {"low_rank": 8, "plain": "two.weight"},
        ),
        (
            (
                "plain must match names of parameters that ddp averages, such as "
                "'one.weight', got 'embed*', which matches none"
            ),
            {"low_rank": 8, "plain": ["two.*", "embed*"]},
        ),
    ):
        refuse(text, lambda o=options: thinwire.ddp_hook(ddp, **o))
        given = options if rank == 1 else {}
        told = "" if rank == 1 else "rank 1 refused its arguments: "
        refuse(
            f"{told}InvalidArgument: {text}",
            lambda o=given: thinwire.ddp_hook(ddp, **o),
        )
    refuse("bits, low_rank, first", lambda: thinwire.ddp_hook(ddp, low_rank=4 + rank))
    hook = thinwire.ddp_hook(ddp, **RANK)
    loss_of(ddp, rank, 0, 1.0).backward()
    good = hook.state_dict()

    def without(part: str) -> dict[str, Any]:
        return {key: value for key, value in good.items() if key != part}

    def changed(part: str, change: Any) -> dict[str, Any]:
        return {
            **good,
            part: {**good[part], "out.weight": change(good[part]["out.weight"])},
        }

    for text, state in (
        ("'factors' must be a mapping, got NoneType", without("factors")),
        ("'generators' must have the names of its 'factors'", without("generators")),
        ("'first_passes' must be an integer in [0, 2^63)", without("first_passes")),
        ("'first_passes' must be an integer", {**good, "first_passes": -1}),
        (
            (
                "'out.weight' in the state's 'factors' must have shape (2, 96), got "
                "(1, 96). If the state is of another low_rank (this hook has "
                "low_rank=2), remove factors, generators and first_passes from it"
            ),
            changed("factors", lambda f: f[:1]),
        ),
        (
            "'factors' has values not finite",
            changed("factors", lambda f: f * torch.nan),
        ),
        ("'factors' has values above 2", changed("factors", lambda f: f + 3)),
        (
            "'out.weight' in the state's 'generators' must be an integer in [-2^63, 2^63)",
            changed("generators", lambda g: 0.5),
        ),
        (
            (
                "'last.weight' is only in the factors of ddp. If the state is of another "
                "low_rank or plain (this hook has low_rank=2), remove factors, "
            ),
            {**good, "factors": {"out.weight": good["factors"]["out.weight"]}},
        ),
    ):
        refuse(text, lambda s=state: hook.load_state_dict(s), "CorruptCheckpoint")
    for state in (
        changed("factors", lambda f: f * (1 - rank / 2)),
        changed("generators", lambda g: g + rank),
        {**good, "first_passes": rank},
    ):
        refuse(
            "state must be the same on all ranks",
            lambda s=state: hook.load_state_dict(s),
        )
    again = hook.state_dict()
    if any(
        not torch.equal(again["factors"][k], good["factors"][k])
        for k in good["factors"]
    ):
        others.append("a state that was refused has changed factors")
    hook.load_state_dict(good)
    hook.close()
    dist.destroy_process_group()
    return others


def reports() -> dict[str, Any]:
    """Returns a report of gradients whose squares fp32 cannot hold, and texts."""
    rank, _ = cases.join()
    found: dict[str, Any] = {"ratios": [], "texts": []}
    for options in (RANK, {"bits": 4}):
        for factor in (1.0, 1e29, 1e-28):
            ddp = cases.wrapped(pictures())
            hook = thinwire.ddp_hook(ddp, **options)
            loss_of(ddp, rank, 0, factor).backward()
            found["ratios"].append(hook.report.residual_ratio)
            hook.close()
        found["texts"].append(repr(hook))
    dist.destroy_process_group()
    return found


def test_reports_of_huge_and_tiny_gradients_and_texts_of_closed_hooks() -> None:
    for found in ranks.results(2, __file__, "reports"):
        plain, huge, tiny, *_ = found["ratios"]
        assert 0 < plain < 1
        assert found["ratios"] == pytest.approx(2 * [plain] * 3, rel=1e-3), (huge, tiny)
        assert found["texts"] == [
            "thinwire.ddp_hook(low rank 2 after 2 backwards in 4 bits, closed)",
            "thinwire.ddp_hook(4 bits, closed)",
        ]


def test_refusals_name_what_is_refused() -> None:
    assert ranks.results(2, __file__, "refusals") == [[], []]


class Dies:
    """An average that ends the process before a call of begin() or finish()."""

    def __init__(self, mean: Any, call: int) -> None:
        self.mean, self.left = mean, call

    def begin(self, *arguments: Any) -> Any:
        self.count()
        return self.mean.begin(*arguments)

    def finish(self) -> Any:
        self.count()
        return self.mean.finish()

    def count(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.mean, name)


def loses_a_rank(call: int) -> dict[str, Any]:
    rank, _ = cases.join()
    ddp = cases.wrapped(pictures())
    hook = thinwire.ddp_hook(ddp, low_rank=2, first_steps=0)
    for step in range(2):  # DDP rebuilds its buckets after the first
        loss_of(ddp, rank, step, 1.0).backward()
    counted = Dies(hook._average, call if rank == 1 else 1000)
    hook._average = counted
    text = ranks.failure_of(lambda: loss_of(ddp, rank, 2, 1.0).backward())
    return {"text": text, "calls": 1000 - counted.left}


@pytest.mark.parametrize("call", [1, 3], ids=["P", "Q"])
def test_a_rank_lost_in_either_exchange_is_named_everywhere(call: int) -> None:
    """After one of four buckets others wait for its P, and after three for its Q."""
    found = ranks.call(3, __file__, "loses_a_rank", call, seconds=100)
    for rank in (0, 2):
        assert not found[rank].timed_out
        value = found[rank].value
        assert "rank 1 has left or died" in value["text"], value
        assert value["calls"] <= 5

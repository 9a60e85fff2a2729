# SPDX-License-Identifier: Apache-2.0
"""What the test device does that tensors on the CPU do not: it is late, it is out of reach,
and it names who does not wait."""

from __future__ import annotations

import ctypes
import io
import os
from typing import Any

import devices
import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytestmark = pytest.mark.skipif(not devices.IS_FENCE, reason="another device is tested")

UNWAITED = "without having waited for it"


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(2, (2, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """The head is tied to the embedding."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(65, width), nn.Embedding(16, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 65, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(self.tokens(x) + places)))


class Pictures(nn.Module):
    """Convolutions and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, stride=2), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.second(F.relu(self.norm(self.first(x)))))
        return self.last(F.adaptive_avg_pool2d(x, 1).flatten(1))


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 5)
    )


def train(kind: str, device: torch.device | str) -> tuple[list[float], dict[str, Any]]:
    torch.manual_seed(0)
    name, _, dtype_name = kind.partition(" ")
    dtype = torch.bfloat16 if dtype_name == "bf16" else torch.float32
    model: nn.Module = {"mlp": perceptron, "gpt": Gpt, "pictures": Pictures}[name]()
    form = (
        torch.channels_last if dtype_name == "channels_last" else torch.preserve_format
    )
    model = model.to(device=device, dtype=dtype, memory_format=form)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(10):
        if name == "gpt":
            tokens = torch.randint(65, (4, 17)).to(device)
            inputs, targets = tokens[:, :-1], tokens[:, 1:].flatten()
            scores = model(inputs).flatten(0, 1)
        elif name == "mlp":
            x = torch.randn(4, 8).to(device, dtype)
            scores, targets = model(x), torch.arange(4, device=device)
        else:
            pictures = torch.randn(4, 3, 12, 12).to(device, memory_format=form)
            scores, targets = model(pictures), torch.arange(4, device=device)
        optimizer.zero_grad()
        F.cross_entropy(scores.float(), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(F.cross_entropy(scores.float(), targets).item())
    return losses, {k: v.cpu() for k, v in model.state_dict().items()}


MODELS = ["mlp", "mlp bf16", "gpt", "gpt bf16", "pictures", "pictures channels_last"]


def models() -> dict[str, bool]:
    device, same = devices.device(), {}
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for kind in MODELS:
            (a, of_cpu), (b, of_device) = train(kind, "cpu"), train(kind, device)
            same[kind] = a == b and all(
                torch.equal(of_cpu[k], of_device[k]) for k in of_cpu
            )
    return same


def test_models_have_the_bits_of_the_cpu() -> None:
    assert devices.run(1, __file__, "models") == [dict.fromkeys(MODELS, True)]


def refused(action: Any) -> str:
    try:
        action()
    except RuntimeError as error:
        return str(error)
    return ""


def behaviour() -> dict[str, Any]:
    device, found = devices.device(), {}
    side = torch.Stream(device)

    def current() -> torch.Stream:
        return torch.accelerator.current_stream(device)

    ones = torch.ones(8, device=device)
    if os.fork() == 0:
        _ = ctypes.c_float.from_address(ones.data_ptr()).value
        os._exit(0)
    found["signal of a host read"] = os.wait()[1] & 127

    numbers = torch.arange(4.0, device=device)
    torch.accelerator.synchronize()
    host = torch.empty(4, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    found["unwaited copy"] = bool(host.isnan().all())
    current().synchronize()
    found["copy"] = host.tolist()
    host.copy_(numbers, non_blocking=True)
    event = current().record_event()
    found["queries"] = [event.query() for _ in range(4)]

    made = numbers + 1
    with side:
        found["read unwaited"] = refused(lambda: made * 10)
    side.wait_event(current().record_event())
    with side:
        times = made * 10
    found["write unwaited"] = refused(lambda: made.add_(1))
    side.synchronize()
    found["waited"] = times.cpu().tolist()

    def free(recorded: bool) -> None:
        gradient, out = torch.ones(64, device=device), torch.empty(64, pin_memory=True)
        side.wait_event(current().record_event())
        with side:
            out.copy_(gradient, non_blocking=True)
        if recorded:
            gradient.record_stream(side)
        del gradient
        current().synchronize()
        side.synchronize()

    source = torch.ones(4, pin_memory=True)
    torch.empty(4, device=device).copy_(source, non_blocking=True)
    source.fill_(5.0)
    found["host writes unwaited"] = refused(torch.accelerator.synchronize)

    found["freed"], found["recorded"] = (
        refused(lambda: free(False)),
        refused(lambda: free(True)),
    )

    before = devices.counts()
    host.copy_(numbers, non_blocking=True)
    torch.empty(4).copy_(numbers, non_blocking=True)
    now = devices.counts()
    found["asynchronous"] = now["async_copies"] - before["async_copies"]
    found["not asynchronous"] = now["unpinned_async"] - before["unpinned_async"]

    file = io.BytesIO()
    torch.save({"x": numbers}, file)
    file.seek(0)
    found["loaded"] = str(torch.load(file)["x"].device)
    found["second device"] = (
        torch.ones(2, device="fence:1").add(1).to("fence:0").tolist()
    )
    found["compiled"] = torch.compile(lambda x: x + 1, backend="aot_eager")(ones)[
        :2
    ].tolist()
    return found


def test_it_is_late_and_names_who_does_not_wait() -> None:
    (found,) = devices.run(1, __file__, "behaviour")
    for case in ("read unwaited", "write unwaited", "freed"):
        assert UNWAITED in found.pop(case), case
    assert "had yet to read" in found.pop("host writes unwaited")
    assert found == {
        "signal of a host read": 11,
        "unwaited copy": True,
        "copy": [0.0, 1.0, 2.0, 3.0],
        "queries": [False, False, False, True],
        "waited": [10.0, 20.0, 30.0, 40.0],
        "recorded": "",
        "asynchronous": 1,
        "not asynchronous": 1,
        "loaded": "fence:0",
        "second device": [2.0, 2.0],
        "compiled": [2.0, 2.0],
    }


def sums() -> dict[str, Any]:
    """The habits of the process group."""
    import torch.distributed as dist

    device = devices.device(int(os.environ["RANK"]))
    torch.accelerator.set_device_index(device.index)
    dist.init_process_group("cpu:gloo,fence:fence_ccl")
    rank = dist.get_rank()
    own = torch.full((3,), rank + 1.0, device=device)
    dist.all_reduce(own)
    everywhere = torch.full((3,), float(rank), device=device)
    dist.broadcast(everywhere, 1)
    on_host = refused(
        lambda: dist.all_reduce(
            torch.ones(2), group=dist.new_group(backend="fence_ccl")
        )
    )
    return {"sum": own.tolist(), "broadcast": everywhere.tolist(), "host": on_host}


def test_its_process_group_sums_tensors_of_the_device_only() -> None:
    for found in devices.run(2, __file__, "sums"):
        assert found["sum"] == [3.0] * 3 and found["broadcast"] == [1.0] * 3
        assert found["host"]

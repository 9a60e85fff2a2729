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
import ranks
import torch

pytestmark = pytest.mark.skipif(not devices.IS_FENCE, reason="another device is tested")

UNWAITED = "without having waited for it"


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
        found["read unwaited"] = ranks.failure_of(lambda: made * 10)
    side.wait_event(current().record_event())
    with side:
        times = made * 10
    found["write unwaited"] = ranks.failure_of(lambda: made.add_(1))
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
    found["host writes unwaited"] = ranks.failure_of(torch.accelerator.synchronize)

    found["freed"], found["recorded"] = (
        ranks.failure_of(lambda: free(False)),
        ranks.failure_of(lambda: free(True)),
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

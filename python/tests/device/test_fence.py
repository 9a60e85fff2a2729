# SPDX-License-Identifier: Apache-2.0
"""What the test device does that tensors on the CPU do not: it is late and out of reach."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import devices
import pytest
import torch

pytestmark = pytest.mark.skipif(not devices.IS_FENCE, reason="another device is tested")


def behaviour() -> dict[str, Any]:
    device, found = devices.device(), {}
    numbers = torch.arange(4.0, device=device)
    torch.accelerator.synchronize()
    if os.fork() == 0:
        _ = ctypes.c_float.from_address(numbers.data_ptr()).value
        os._exit(0)
    found["signal of a host read"] = os.wait()[1] & 127

    stream = torch.accelerator.current_stream(device)
    host = torch.empty(4, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    found["unwaited copy"] = bool(host.isnan().all())
    stream.synchronize()
    found["copy"] = host.tolist()
    host.copy_(numbers, non_blocking=True)
    event = stream.record_event()
    found["queries"] = [event.query() for _ in range(4)]

    before = devices.counts()
    host.copy_(numbers, non_blocking=True)
    torch.empty(4).copy_(numbers, non_blocking=True)
    now = devices.counts()
    found["asynchronous"] = now["async_copies"] - before["async_copies"]
    found["not asynchronous"] = now["unpinned_async"] - before["unpinned_async"]
    return found


def test_it_is_late_and_out_of_reach() -> None:
    """That it names who does not wait is shown by the mutants of test_devices_waits.py."""
    assert devices.run(1, __file__, "behaviour") == [
        {
            "signal of a host read": 11,
            "unwaited copy": True,
            "copy": [0.0, 1.0, 2.0, 3.0],
            "queries": [False, False, False, True],
            "asynchronous": 1,
            "not asynchronous": 1,
        }
    ]

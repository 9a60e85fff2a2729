# SPDX-License-Identifier: Apache-2.0
"""The test device "fence" of tests/device, as torch knows a device: torch.fence, and the
process group "fence_ccl". Importing this makes it the accelerator of the process."""

from __future__ import annotations

import importlib.util
import os
import types
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist

_BUILD = Path(__file__).resolve().parents[2] / "build" / "release" / "tests"
MODULE = Path(os.environ.get("THINWIRE_FENCE", _BUILD / "fence_device.so"))


def _load() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("fence_device", MODULE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _index(device: object = "fence") -> int:
    found = torch.device("fence", device) if isinstance(device, int) else device
    index = torch.device(found).index  # type: ignore[arg-type]
    return torch.accelerator.current_device_index() if index is None else index


def _seed_all(seed: int) -> None:
    state = torch.Generator().manual_seed(seed).get_state()
    for index in range(torch.ops.fence.device_count()):
        torch.ops.fence.set_rng_state(index, state)


class _Device(torch.accelerator.device_index):
    def __init__(self, device: object) -> None:
        super().__init__(_index(device))


def counts() -> dict[str, int]:
    """Since the process began: operators, waits of the host, copies that were asynchronous,
    and copies that were meant to be and were not."""
    names = ("operators", "host_waits", "async_copies", "unpinned_async")
    return dict(zip(names, torch.ops.fence.counts(), strict=True))


def _module() -> types.ModuleType:
    made = types.ModuleType("torch.fence")
    members = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": lambda: None,
        "device_count": torch.ops.fence.device_count,
        "current_device": torch.accelerator.current_device_index,
        "device": _Device,
        "set_device": torch.accelerator.set_device_index,
        "synchronize": torch.accelerator.synchronize,
        "current_stream": torch.accelerator.current_stream,
        "Stream": torch.Stream,
        "stream": lambda stream: stream or nullcontext(),
        "Event": torch.Event,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "get_rng_state": lambda d="fence": torch.ops.fence.rng_state(_index(d)),
        "set_rng_state": lambda s, d="fence": torch.ops.fence.set_rng_state(
            _index(d), s
        ),
        "manual_seed_all": _seed_all,
        "manual_seed": _seed_all,
        "counts": counts,
    }
    for name, member in members.items():
        setattr(made, name, member)
    return made


_native = _load()
torch.utils.rename_privateuse1_backend("fence")
dist.Backend.register_backend("fence_ccl", _native.create, devices=["fence"])
torch._register_device_module("fence", _module())
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)

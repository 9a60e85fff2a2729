# SPDX-License-Identifier: Apache-2.0
"""What averages on a device move through its memory and hold there, as the guides say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import hook_cases as cases
import pytest
import torch
from thinwire.hooks import _exchange, _rows
from thinwire.hooks._device_average import DeviceAverage
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.quick
GUIDES = Path(__file__).resolve().parents[3] / "docs/guide"
SIZE = 64 * cases.BLOCK
BUCKETS = 3


def bytes_of(tensors: Any) -> int:
    return sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))


class Counting(TorchDispatchMode):
    """Counts bytes that operations read and write, and those of storages that live."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = self.most = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, call: Any, _: Any, given: Any = (), named: Any = None
    ) -> Any:
        result = call(*given, **(named or {}))
        own = tree_leaves(result)
        aliases = [one.alias_info for one in call._schema.returns]
        is_view = any(alias and not alias.is_write for alias in aliases)
        name = call.name().removeprefix("aten::").split(".")[0]
        if not is_view and "empty" not in name:
            read = bytes_of(tree_leaves([given, named]))
            if name == "index_select":
                read = bytes_of(own) + bytes_of(given[2:])
            elif name == "index_copy_":
                read = bytes_of(given[2:])
                own = given[3:]
            elif name in ("new_zeros", "zeros", "full_like"):
                read = 0
            elif name in ("copy_", "_foreach_copy_"):
                read, own = bytes_of(tree_leaves(given[1])), tree_leaves(given[0])
            elif call.name().endswith(".out"):
                own = []
            self.moved += read + bytes_of(own)
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                there = StorageWeakRef(storage), storage.nbytes()
                self._live.setdefault(storage._cdata, there)
        live = {k: one for k, one in self._live.items() if not one[0].expired()}
        self._live = live
        self.most = max(self.most, sum(size for _, size in live.values()))
        return result

    def collective(self, to: torch.Tensor, given: torch.Tensor, **_: Any) -> Any:
        """Stands in for one of torch.distributed, which reads and writes memory once."""
        self.moved += to.nbytes + given.nbytes
        with _disable_current_modes():
            to.zero_()
        return mock.Mock()


class Groups:
    """The groups of rank 0 of some hosts, without processes."""

    device = torch.device("cpu")
    host = local = number = 0
    between = "between"

    def __init__(self, hosts: int, per_host: int) -> None:
        self.hosts, self.per_host = hosts, per_host
        self.inside = "inside" if per_host > 1 else None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        yield


def counted(bits: int, hosts: int, per_host: int) -> tuple[float, float]:
    """Returns the bytes per fp32 element of a backward, and those held per element of a
    bucket beside gradients and residuals. All buckets are in flight at once."""
    groups: Any = Groups(hosts, per_host)
    average = DeviceAverage(groups, [SIZE] * BUCKETS, bits, torch.float32)
    buckets = [torch.zeros(SIZE) for _ in range(BUCKETS)]

    def backward() -> None:
        for k, values in enumerate(buckets):
            average.begin((values, None), [k], 1.0)
        average.finish()

    counting = Counting()
    with (
        mock.patch.object(_exchange, "_all_gather", counting.collective),
        mock.patch.object(_exchange, "_reduce_scatter", counting.collective),
        mock.patch.object(_exchange.dist, "all_to_all_single", counting.collective),
        # A device has a bucket in one chunk.
        mock.patch.object(_rows, "_OF_A_CPU", _rows._OF_A_DEVICE),
    ):
        backward()  # makes plans
        counting.moved = 0
        with counting:
            backward()
    kept = 4 * (1 + (1 + 1 / hosts) / per_host) * SIZE * BUCKETS
    return counting.moved / SIZE / BUCKETS, (counting.most - kept) / SIZE


@pytest.mark.parametrize("bits", [4, 8])
def test_the_guides_table_has_the_bytes_of_the_operations(bits: int) -> None:
    guide = (GUIDES / "devices.md").read_text()
    row = f"ddp_hook {bits}/{bits}, device path | "
    shown = int(guide.split(row)[1].split()[0])
    moved, _ = counted(bits, hosts=4, per_host=8)
    # 10^9 parameters at 3350 GB/s.
    assert abs(moved / 3.350 - shown) < 0.51, moved
    if bits == 4:
        assert f"about\n  {moved:.0f} bytes per parameter" in guide, moved


def test_the_guide_says_what_buckets_in_flight_hold() -> None:
    guide = (GUIDES / "ddp-hook.md").read_text()
    said = re.search(r"They take (\d+) to (\d+) bytes more per\s+element", guide)
    assert said is not None
    shapes = [(2, 1), (8, 1), (2, 2), (4, 8)]
    held = [counted(bits, *shape)[1] for bits in (4, 8) for shape in shapes]
    assert [int(text) for text in said.groups()] == [
        round(min(held)),
        round(max(held)),
    ], held

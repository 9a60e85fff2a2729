# SPDX-License-Identifier: Apache-2.0
"""The optimizers in torch operations, for tensors on any device.

The same algorithms as the C++ library's, with the same formulas in the same order, in plain
torch operations: they need no kernel of their own and run wherever torch has fp64 sums. On CPU
tensors every bit is that of the C++ kernels (`ordered` sums, averages in rank order). On other
devices sums have the device's own order, so scales may differ by a unit in the last place. Only
CPU tensors have ever been run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .base import DeviceOptimizer
from .exact import ExactOptimizer
from .exchange import exchange_of
from .model import Model
from .onebit_adam import OnebitAdam
from .onebit_lamb import OnebitLamb
from .rows import Rows, Spec
from .settings import settings_of
from .zero_one_adam import ZeroOneAdam

_KINDS: dict[str, type[DeviceOptimizer]] = {
    "adam": ExactOptimizer,
    "lamb": ExactOptimizer,
    "onebit_adam": OnebitAdam,
    "onebit_lamb": OnebitLamb,
    "zero_one_adam": ZeroOneAdam,
}


def make_optimizer(
    group: Any,
    specs: Sequence[Spec],
    config: Any,
    device: torch.device | str,
    ordered: bool | None = None,
) -> DeviceOptimizer:
    """The optimizer of a configuration, for parameters on `device`. Collective.

    Args:
        group: The ranks: `rank`, `size`, and `process_group`, a torch process group of the
            device's backend that nobody else uses; for CPU tensors also a communicator of the
            native module.
        specs: (name, shape, group) of every parameter, in order.
        config: A `thinwire.Config` with the options in it.
        ordered: Sums and exact averages in the C++ library's order; default: on a CPU.

    Returns:
        An object with the methods of the native Optimizer. Its flat arrays have `size`
        elements, with parameter k at `offsets[k]`.

    Raises:
        Unavailable: for what this path does not have: ZeRO, lean 1-bit Adam, exchange by host or
            during backward, `deepspeed` semantics, moments or masters of 16 bits.
        InvalidArgument: for options out of range, or that differ between ranks.
    """
    from .. import _core

    device = torch.device(device)
    exchange = exchange_of(group, device)
    config.validate(exchange.size)
    specs = [(name, tuple(shape), group_index) for name, shape, group_index in specs]
    layout = _core.Layout(specs)
    settings = settings_of(config, specs)
    bits = 32 if settings.name in ("adam", "lamb") else 1
    settings.bucket_elements = _core.bucket_elements(
        settings.bucket_elements, layout.size, exchange.size, bits
    )
    exchange.require_same(
        "parameter layout and options", layout.describe() + settings.describe()
    )
    rows = Rows(specs, exchange.size, device, settings.exact_groups)
    in_order = device.type == "cpu" if ordered is None else ordered
    made = _KINDS[settings.name](Model(rows, settings, exchange, in_order))
    made.layout = layout.describe()
    return made

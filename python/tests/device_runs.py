# SPDX-License-Identifier: Apache-2.0
"""Runs of a native optimizer and its counterpart of the device path over the same gradients,
ranks being threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from thinwire import _core
from thinwire.comm import run_local_ranks
from thinwire.device import make_optimizer
from thinwire.device.base import DeviceOptimizer

SPECS: list[tuple[str, tuple[int, ...], int]] = [
    ("weight", (33, 65), 0),
    ("empty", (0, 7), 0),
    ("bias", (7,), 1),
    ("scalar", (), 0),
    ("long", (1025,), 1),
    ("whole", (1024,), 0),
]
SIZE = sum(torch.Size(shape).numel() for _, shape, _ in SPECS)

Gradients = Callable[[int, int], torch.Tensor]
"""Of a step, from 1, and a rank: all elements, without gaps."""


def on_ranks(
    world: int, body: Callable[[_core.Communicator, _core.Communicator], Any]
) -> list[Any]:
    """body(communicator, another one) on `world` threads; what each returned."""

    def run(comm: _core.Communicator) -> Any:
        torch.set_num_threads(1)
        other = comm.split(0)
        assert other is not None
        return body(comm, other)

    return run_local_ranks(world, run)


def config_of(options: Any, **settings: Any) -> _core.Config:
    """A configuration with these options; `settings` are of Config, by dotted names with
    underscores doubled, as comm__bucket_elements."""
    config = _core.Config()
    config.optimizer = options
    config.comm.bucket_elements = 4096
    for name, value in settings.items():
        owner: Any = config
        *path, last = name.split("__")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, value)
    return config


def options_of(kind: str, **values: Any) -> Any:
    """Of "Adam", "OnebitLamb" and so on, with a decay, short stages and these values."""
    options = getattr(_core, kind + "Options")()
    defaults = {"learning_rate": 1e-2, "beta2": 0.99, "weight_decay": 0.01}
    if kind.startswith("Onebit"):
        defaults["freeze_step"] = 12
    if kind == "ZeroOneAdam":
        defaults |= {"var_freeze_step": 25, "var_update_scaler": 4}
        defaults |= {"local_step_scaler": 10, "local_step_clipper": 8}
    for name, value in (defaults | values).items():
        setattr(options, name, value)
    return options


def gradient(step: int, rank: int) -> torch.Tensor:
    """Normal, of changing size; some elements are late, one is heavy, some outliers come after
    the freezes."""
    random = torch.Generator().manual_seed(1000 * step + rank)
    g = torch.randn(SIZE, generator=random) * (1 + step % 3)
    if step < 20:
        g[40:60] = 0
    if step < 36 or rank > 0:
        g[2152:2500] = 0
    if step < 150 or step % 2:
        g[-1024:] *= 1e-3
    g[5] = 1e6 if step == 3 else g[5]
    if step in (30, 133):
        g[700:703] *= 1e5
    return g


def parameters() -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(3))


@dataclass
class Pair:
    """Both optimizers of one rank, with parameters of their own."""

    native: _core.Optimizer
    device: DeviceOptimizer
    native_params: torch.Tensor
    device_params: torch.Tensor
    rank: int
    reports: list[tuple[Any, Any]] = field(default_factory=list)

    @staticmethod
    def of(
        comms: Sequence[_core.Communicator],
        config: _core.Config,
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> Pair:
        params = parameters().to(dtype)
        native = _core.Optimizer(comms[0], _core.Layout(SPECS), config, params)
        device = make_optimizer(comms[1], SPECS, config, "cpu", **options)
        flat = device.model.rows.place(params).view(-1)
        return Pair(native, device, params, flat, comms[0].rank)

    def step(
        self,
        step: int,
        gradients: Gradients = gradient,
        dtype: torch.dtype | None = None,
        loss_scale: float = 1.0,
    ) -> None:
        g = gradients(step, self.rank).to(dtype or torch.float32)
        rows = self.device.model.rows.place(g).view(-1)
        native = self.native.step(self.native_params, g, loss_scale)
        self.reports.append(
            (native, self.device.step(self.device_params, rows, loss_scale))
        )

    def synchronize(self) -> None:
        self.native.synchronize(self.native_params)
        self.device.synchronize(self.device_params)

    def require_same(self, step: int) -> None:
        """Bits of parameters, and what the reports of the last step have in common."""
        dense = self.device.model.rows.dense(self.device_params)
        bits = torch.int16 if dense.dtype == torch.bfloat16 else torch.int32
        same = dense.view(bits) == self.native_params.view(bits)
        where = (~same).nonzero()[:5, 0].tolist()
        assert bool(same.all()), f"rank {self.rank}, step {step}, elements {where}"
        native, device = self.reports[-1]
        for name in (
            "applied",
            "nonfinite_rank",
            "phase",
            "grad_norm",
            "clip_factor",
            "grad_norm_is_estimate",
            "masked",
            "heavy",
            "revived",
            "gradients_equal",
        ):
            ours, theirs = getattr(device, name), getattr(native, name)
            assert repr(ours) == repr(theirs), f"step {step}: {name}"

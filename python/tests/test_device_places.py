# SPDX-License-Identifier: Apache-2.0
"""No operation of the device path mixes tensors of its device with others: on one whose tensors
are marked CPU tensors, and which refuses what a GPU would refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from device_runs import SPECS, config_of, gradient, options_of, parameters
from thinwire import _core
from thinwire.device import optimizer as made_here
from thinwire.device.exchange import Exchange
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

PLACE = torch.device("xpu")
KINDS = ["Adam", "Lamb", "OnebitAdam", "OnebitLamb", "ZeroOneAdam"]
GIVES_CPU_TENSORS = {"cpu", "tolist", "item"}


class Marked(torch.Tensor):
    """A tensor of PLACE."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if getattr(func, "__self__", None) is torch.Tensor.device:
            return PLACE
        if name == "to" and any(arg == PLACE for arg in args[1:]):
            return (
                args[0] if isinstance(args[0], Marked) else args[0].as_subclass(Marked)
            )
        for value in tree_leaves((args, kwargs)):
            is_other = isinstance(value, torch.Tensor) and not isinstance(value, Marked)
            if is_other and value.dim() > 0:
                raise AssertionError(f"{name} mixes tensors of two devices")
        found = super().__torch_function__(func, types, args, kwargs)
        if name in GIVES_CPU_TENSORS and isinstance(found, torch.Tensor):
            return found.as_subclass(torch.Tensor)
        return found


class Place(TorchFunctionMode):
    """Makes what is asked for on PLACE."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == PLACE and "Tensor" not in str(func):
            del kwargs["device"]
            return func(*args, **kwargs).as_subclass(Marked)
        if getattr(func, "__name__", "") == "to" and PLACE in args[1:2]:
            return args[0].as_subclass(Marked)
        return func(*args, **kwargs)


class Echo(Exchange):
    """Two ranks that say the same."""

    def __init__(self) -> None:
        super().__init__(0, 2)

    def _device(self) -> torch.device:
        return PLACE

    def _all_to_all(self, values: torch.Tensor, output: torch.Tensor) -> None:
        assert isinstance(values, Marked)
        half = values.numel() // 2
        output.copy_(torch.cat([values[:half], values[:half]]))

    def _all_gather(self, values: torch.Tensor, output: torch.Tensor) -> None:
        assert isinstance(values, Marked)
        output.copy_(torch.cat([values, values]))

    def _all_reduce(self, values: torch.Tensor) -> None:
        assert isinstance(values, Marked)
        values.mul_(2)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(made_here, "exchange_of", lambda group, device: Echo())
    with Place():
        yield


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "ordered"),
    [*((kind, False) for kind in KINDS), ("OnebitLamb", True)],
)
def test_no_operation_mixes_devices(kind: str, ordered: bool, place: None) -> None:
    options = options_of(kind)
    if kind == "ZeroOneAdam":
        options.var_freeze_step, options.local_step_scaler = 4, 3
    elif kind.startswith("Onebit"):
        options.freeze_step = 4
    groups = {"OnebitAdam": "OnebitAdamGroup", "OnebitLamb": "OnebitLambGroup"}
    if kind in groups:
        options.groups = [getattr(_core, groups[kind])() for _ in range(2)]
        options.groups[1].beta1 = 0.8
    config = config_of(options, gradient_clipping=10.0, comm__verify_every=3)
    optimizer = made_here.make_optimizer(None, SPECS, config, PLACE, ordered=ordered)
    rows = optimizer.model.rows
    params = rows.place(parameters().to(PLACE)).view(-1)
    assert params.device == PLACE
    with pytest.raises(AssertionError, match="mixes tensors"):
        params + torch.zeros(rows.size)
    for step in range(1, 15):
        grads = rows.place(gradient(3 * step, 0).to(PLACE)).view(-1)
        report = optimizer.step(params, grads)
        assert report.applied
        if step in (3, 14):
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.native_state()
    optimizer.synchronize(params)
    assert isinstance(params, Marked)
    assert bool(params.isfinite().all())

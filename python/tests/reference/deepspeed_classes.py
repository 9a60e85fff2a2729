# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own 1-bit optimizers on CPUs. Ranks are threads.

    pip download --no-deps --no-binary :all: deepspeed==0.19.6
    tar xf deepspeed-0.19.6.tar.gz
    THINWIRE_DEEPSPEED=deepspeed-0.19.6 python python/tests/reference/deepspeed_classes.py

writes states.pt beside this file: what these classes save before, at and after their
freeze. The files of onebit/, nccl.py and cupy.py run as they are. What they import is
replaced: the accelerator, torch.distributed, CuPy (by numpy). Additions with a factor,
roots, norms and sums are computed as tests/golden/README.md says, so the results do not
depend on the processor.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

STATES = Path(__file__).with_name("states.pt")
SHAPES = {"a": (8, 4), "b": (8,), "c": (3, 5)}
SIZES = [int(np.prod(shape)) for shape in SHAPES.values()]
FREEZE, MORE = 4, 3
UPDATES = 2
OPTIONS: dict[str, dict[str, Any]] = {
    "OneBitAdam": {"lr": 0.01, "freeze_step": FREEZE},
    "OneBitLamb": {"lr": 0.01, "freeze_step": FREEZE},
    "ZeroOneAdam": {
        "lr": 0.01,
        "var_freeze_step": 5,
        "var_update_scaler": UPDATES,
        "local_step_scaler": 3,
        "local_step_clipper": 4,
    },
}
CLASSES = {
    "OneBitAdam": ("adam", "OnebitAdam"),
    "OneBitLamb": ("lamb", "OnebitLamb"),
    "ZeroOneAdam": ("zoadam", "ZeroOneAdam"),
}
MOMENTS = {  # steps after which it is saved; 0/1 Adam synchronizes in these
    "OneBitAdam": {"before": 3, "at": FREEZE, "after": 7},
    "OneBitLamb": {"before": 3, "at": FREEZE, "after": 7},
    "ZeroOneAdam": {"before": 3, "at": 6, "after": 8},
}


class Net(torch.nn.Module):
    """Parameters a, b and c, whose gradients are the argument."""

    def __init__(self) -> None:
        super().__init__()
        values = (torch.arange(sum(SIZES)) * 6007 % 997 - 498) / 512
        for (name, shape), part in zip(SHAPES.items(), values.split(SIZES)):
            setattr(self, name, torch.nn.Parameter(part.reshape(shape).clone()))

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        return sum((p * g).sum() for p, g in zip(self.parameters(), gradients))


def gradients(step: int, rank: int) -> list[torch.Tensor]:
    """Multiples of 2^-12, so their averages over ranks are exact."""
    values = torch.arange(sum(SIZES)) * 7919 + step * 104729 + rank * 1299709
    parts = ((values % 1021 - 510) / 4096).split(SIZES)
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES.values())]


def flat(net: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


class Ranks:
    """torch.distributed for ranks that are threads; sums are in rank order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._shared: list[Any] = [None] * size
        self._thread = threading.local()

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Returns the results of all ranks."""
        results: list[Any] = [None] * self.size
        failures: list[BaseException] = []

        def rank(number: int) -> None:
            self._thread.rank = number
            try:
                results[number] = function(number)
            except BaseException as error:  # noqa: BLE001  raised again below
                failures.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=rank, args=(r,)) for r in range(self.size)]
        with contextlib.redirect_stdout(io.StringIO()):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for error in failures:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return results

    def share(self, value: Any) -> list[Any]:
        self._shared[self._thread.rank] = value
        self._barrier.wait()
        values = list(self._shared)
        self._barrier.wait()
        return values

    def module(self) -> types.ModuleType:
        def all_reduce(x: torch.Tensor, group: Any = None) -> None:
            x.copy_(in_order(self.share(x.clone())))

        def all_gather(out: list[torch.Tensor], x: torch.Tensor, group: Any) -> None:
            for to, value in zip(out, self.share(x.clone()), strict=True):
                to.copy_(value)

        def all_to_all_single(out: torch.Tensor, x: torch.Tensor, group: Any) -> None:
            all_ = self.share(x.clone())
            out.copy_(torch.stack([value[self._thread.rank] for value in all_]))

        made = types.ModuleType("deepspeed.comm")
        made.__dict__.update(
            is_initialized=lambda: True,
            get_rank=lambda group=None: self._thread.rank,
            get_world_size=lambda group=None: self.size,
            new_group=lambda ranks: None,
            all_reduce=all_reduce,
            all_gather=all_gather,
            all_to_all_single=all_to_all_single,
        )
        return made


def in_order(values: list[torch.Tensor]) -> torch.Tensor:
    total = values[0].clone()
    for value in values[1:]:
        total.add_(value)
    return total


_add, _sum = torch.Tensor.add_, torch.Tensor.sum


def _plain_add(self: Any, *given: Any, alpha: float = 1) -> torch.Tensor:
    if len(given) == 2:  # the signature that torch has removed
        alpha, *given = given
    return _add(self, given[0] if alpha == 1 else given[0] * alpha)


def _plain_addcmul(self: Any, value: float, x: Any, y: Any) -> torch.Tensor:
    return _add(self, x * value * y)


def _plain_sqrt(self: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.asarray(np.sqrt(self.detach().numpy())))


def _plain_sum(self: torch.Tensor, *dim: int) -> torch.Tensor:
    return in_order([*self]) if dim else _sum(self.double()).to(self.dtype)


def _plain_norm(x: torch.Tensor) -> torch.Tensor:
    return _sum(x.detach().double() ** 2).pow(0.5).to(x.dtype)


@contextlib.contextmanager
def plain_arithmetic() -> Iterator[None]:
    with (
        mock.patch.multiple(
            torch.Tensor,
            add_=_plain_add,
            addcmul_=_plain_addcmul,
            sqrt=_plain_sqrt,
            sum=_plain_sum,
        ),
        mock.patch.multiple(torch.linalg, norm=_plain_norm, vector_norm=_plain_norm),
    ):
        yield


def _cupy() -> types.ModuleType:
    made = types.ModuleType("cupy")
    names = ("zeros", "packbits", "unpackbits", "split")
    made.__dict__.update({name: getattr(np, name) for name in names})
    made.__dict__.update(
        from_dlpack=lambda capsule: torch.from_dlpack(capsule).numpy(),
        cuda=mock.MagicMock(),
    )
    return made


def source() -> Path | None:
    """The unpacked source of DeepSpeed that THINWIRE_DEEPSPEED names."""
    given = os.environ.get("THINWIRE_DEEPSPEED")
    return Path(given).resolve() if given else None


@contextlib.contextmanager
def reference(ranks: Ranks) -> Iterator[dict[str, type[Any]]]:
    """DeepSpeed's classes by their names in configurations, for runs inside of it."""
    root = source()
    if root is None:
        raise SystemExit("THINWIRE_DEEPSPEED must name the source of DeepSpeed 0.19.6")
    made = {"cupy": _cupy(), "deepspeed.comm": ranks.module()}
    packages = ("", ".runtime", ".runtime.comm", ".runtime.compression")
    for name in (*packages, ".runtime.fp16", ".runtime.fp16.onebit"):
        package = types.ModuleType(f"deepspeed{name}")
        package.__path__ = [str(root / "deepspeed" / Path(*name.split(".")))]
        made[package.__name__] = package
    made["deepspeed"].comm = made["deepspeed.comm"]  # type: ignore[attr-defined]
    accelerator = mock.MagicMock(device_name=lambda number: "cpu")
    of_ours = {
        "accelerator": {"get_accelerator": lambda: accelerator},
        "utils": {},
        "utils.torch": {"required_torch_version": lambda min_version: True},
        "runtime.utils": {"filter_empty_parameters": list},
    }
    for name, members in of_ours.items():
        module = types.ModuleType(f"deepspeed.{name}")
        module.__dict__.update(members)
        made[module.__name__] = module
    with mock.patch.dict(sys.modules, made), plain_arithmetic():
        onebit = "deepspeed.runtime.fp16.onebit"
        yield {
            kind: getattr(importlib.import_module(f"{onebit}.{file}"), name)
            for kind, (file, name) in CLASSES.items()
        }


class Run:
    """One rank of a run of DeepSpeed, after the initialization step of its wrappers.

    is_flat: one tensor has all parameters, as in the fused fp16 wrapper.
    """

    def __init__(
        self,
        ranks: Ranks,
        made: type[Any],
        options: dict[str, Any],
        is_flat: bool = False,
        masks: dict[str, torch.Tensor] | None = None,
    ) -> None:
        self._ranks, self.net = ranks, Net()
        self.handle = types.SimpleNamespace(
            mpu=None, local_rank=0, enable_backward_allreduce=True
        )
        self.parameters = [*self.net.parameters()]
        if is_flat:
            self.parameters = [torch.nn.Parameter(flat(self.net))]
        given: list[Any] = self.parameters
        if masks is not None:
            given = [
                {"params": [p]} | ({"exp_avg_mask": masks[n]} if n in masks else {})
                for n, p in self.net.named_parameters()
            ]
        self.optimizer = made(given, deepspeed=self.handle, **options)
        for p in self.parameters:
            p.grad = torch.zeros_like(p)
        self.optimizer.step()

    def step(self, number: int, rank: int) -> None:
        """Averages gradients while the optimizer wants it, as DeepSpeed's engine does."""
        given = gradients(number, rank)
        if self.handle.enable_backward_allreduce:
            all_ = self._ranks.share(given)
            size = self._ranks.size
            given = [in_order([*g]) * (1 / size) for g in zip(*all_)]
        if len(self.parameters) == 1:
            given = [torch.cat([g.reshape(-1) for g in given])]
        for p, gradient in zip(self.parameters, given):
            p.grad = gradient
        self.optimizer.step()

    def values(self) -> torch.Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def load(self, values: torch.Tensor, state: dict[str, Any]) -> None:
        with torch.no_grad():
            sizes = [p.numel() for p in self.parameters]
            for p, part in zip(self.parameters, values.split(sizes)):
                p.copy_(part.reshape(p.shape))
        self.optimizer.load_state_dict(copy.deepcopy(state))


def saved(kind: str, moment: str, size: int, is_flat: bool = False) -> dict[str, Any]:
    """mp_rank_00_model_states.pt of DeepSpeed's engine after some steps, and as
    "continued" the parameters of its ranks after MORE steps of a run that loaded it."""
    ranks, options = Ranks(size), OPTIONS[kind]
    steps = MOMENTS[kind][moment]

    def train(rank: int) -> Any:
        run = Run(ranks, classes[kind], options, is_flat)
        for number in range(1, steps):  # the initialization counts as a step
            run.step(number, rank)
        state, values = ranks.share(
            (copy.deepcopy(run.optimizer.state_dict()), run.values())
        )[0]
        again = Run(ranks, classes[kind], options, is_flat)
        again.load(values, state)
        for number in range(steps, steps + MORE):
            again.step(number, rank)
        return state, values, again.values()

    with reference(ranks) as classes:
        results = ranks.run(train)
    state, values, _ = results[0]
    parts = zip(SHAPES.items(), values.split(SIZES))
    module = {name: part.reshape(shape).clone() for (name, shape), part in parts}
    optimizer: dict[str, Any] = state
    if is_flat:
        module = {name: value.half() for name, value in module.items()}
        optimizer = {"cur_scale": 65536.0, "optimizer_state_dict": state}
        optimizer["fp32_groups_flat"] = [values]
    return {
        "module": module,
        "buffer_names": [],
        "optimizer": optimizer,
        "global_steps": steps,
        "ds_version": "0.19.6",
        "continued": [values for _, _, values in results],
    }


def cases() -> Iterator[tuple[str, str, int, bool]]:
    for kind, moments in MOMENTS.items():
        for moment in moments:
            for size in (1, 2):
                yield kind, moment, size, False
            if kind == "OneBitAdam":
                yield kind, moment, 2, True


def name_of(kind: str, moment: str, size: int, is_flat: bool) -> str:
    return f"{kind} {moment} {size}{' fp16' if is_flat else ''}"


def main() -> None:
    torch.save({name_of(*case): saved(*case) for case in cases()}, STATES)
    print(f"{STATES}: {STATES.stat().st_size} bytes")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch that make their own steps in an Engine."""

from __future__ import annotations

import hashlib
import inspect
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .. import _core
from .._log import logger
from ..comm.lifetime import reason_of
from ..errors import CorruptCheckpoint, FailedPrecondition, InvalidArgument
from ..optim._base import _Optimizer
from ..optim._options import GROUP_KEYS, to_text
from ._groups import Groups

_UNSUPPORTED = ("capturable", "differentiable")
INSTEAD = (
    "torch.optim.Adam or AdamW, which become Thinwire's unless they have amsgrad or "
    "maximize, or an optimizer of Thinwire's"
)


class Client:
    """A torch optimizer that C++ calls. The optimizer receives the exact average of the
    ranks' gradients, clipped and unscaled, so its step() has the same result on every
    rank.

    During a step, the optimizer works on fp32 values: the engine's parameters, or
    masters of 16-bit parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises InvalidArgument if the optimizer needs a closure or sparse gradients.
        Local.
        """
        kind = type(optimizer)
        self.optimizer = optimizer
        self.name = f"{kind.__module__}.{kind.__qualname__}"
        self._groups = optimizer.param_groups
        self._state = optimizer.state
        self._parameters: list[torch.Tensor] = []
        self._stand_ins: dict[int, torch.Tensor] = {}
        """CPU copies of the parameters on a device, by id() of the parameter."""
        self._offsets: list[int] = []
        self._error: BaseException | None = None
        closure = inspect.signature(kind.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise InvalidArgument(
                f"optimizer: step() of {self.name} needs a closure that computes the loss "
                "several times, and an engine has the gradients of one backward per step; "
                "use another optimizer"
            )
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise InvalidArgument(
                f"optimizer: {self.name} needs sparse gradients, and an engine averages "
                "dense ones; use torch.optim.Adam"
            )
        for number, group in enumerate(self._groups):
            for key in _UNSUPPORTED:
                if group.get(key):
                    raise InvalidArgument(
                        f"optimizer: param_groups[{number}]['{key}'] must be False, it is "
                        "not supported"
                    )
            if "lr" not in group:
                raise InvalidArgument(
                    f"optimizer: param_groups[{number}] of {self.name} must have 'lr', "
                    "which schedules and reports go by"
                )

    def tell(self, config: _core.Config) -> None:
        """Writes the optimizer's settings that C++ needs into the configuration. Local.

        Raises InvalidArgument naming a setting that the optimizer does not allow.
        """
        allowed: list[tuple[str, Any, Any]] = [
            ("zero_optimization.stage", config.zero.stage, 0),
            ("thinwire.semantics", config.semantics, _core.Semantics.corrected),
            ("the type of masters", config.precision.master_dtype, _core.DType.float32),
        ]
        for what, value, only in allowed:
            if value != only:
                raise InvalidArgument(
                    f"optimizer: {self.name} makes its own steps, so {what} must be "
                    f"{_text(only)}, got {_text(value)}; give {INSTEAD}"
                )
        swaps = [callable(getattr(self.optimizer, n, None)) for n in ("train", "eval")]
        if all(swaps) and config.precision.dtype != _core.DType.float32:
            raise InvalidArgument(
                f"optimizer: {self.name} has train() and eval(), which write other weights "
                "into the parameters, so the precision must be float32, got "
                f"{config.precision.dtype.name}"
            )
        rates = [to_text({"lr": rate}) for rate in self.learning_rates]
        config.set_optimizer("AdamW", rates[0])
        config.set_groups(rates)

    def begin(self, parameters: Sequence[torch.Tensor], offsets: Sequence[int]) -> None:
        self._offsets = list(offsets)
        every = [p for group in self._groups for p in group["params"]]
        for p in every:
            if p.device.type != "cpu":
                on_host = torch.nn.Parameter(p.detach().cpu(), p.requires_grad)
                self._stand_ins[id(p)] = on_host
                if p in self._state:
                    self._state[on_host] = _on_host(self._state.pop(p))
        self._parameters = [self._stand_ins.get(id(p), p) for p in parameters]

    # ---- called by C++, see python/bindings/engine.h

    @property
    def learning_rates(self) -> list[float]:
        return [float(group["lr"]) for group in self._groups]

    @property
    def description(self) -> str:
        """Settings and state, for ranks to compare."""
        lines = [
            ", ".join(f"{k}={_text(v)}" for k, v in group.items() if k != "params")
            for group in self._groups
        ]
        return "\n".join([*lines, f"state {hashlib.sha256(self.pack()).hexdigest()}"])

    def step(self, params: memoryview, grads: memoryview) -> None:
        """Runs the optimizer's step. Local. Keeps an exception for raise_error()."""
        try:
            with self._working_on(_floats(params), _floats(grads)):
                self.optimizer.step()
        except BaseException as error:  # noqa: BLE001  other ranks are in this step
            self._error = error

    def pack(self) -> bytes:
        """Returns the optimizer's state_dict(), and the names of its parameters."""
        file = io.BytesIO()
        with self._on_host():
            state = self.optimizer.state_dict()
        torch.save({"names": self._names, "state": state}, file)
        return file.getvalue()

    def check(self, packed: bytes) -> tuple[dict[Any, Any], Groups]:
        """Returns the state that load_state_dict() would set, and changes nothing.
        Local.

        Raises CorruptCheckpoint.
        """
        try:
            saved = torch.load(io.BytesIO(packed), weights_only=True)
            names, state = _unwrapped(saved["names"]), saved["state"]
        except Exception as error:  # noqa: BLE001  a damaged pickle raises anything
            raise CorruptCheckpoint(
                f"the state of {self.name} cannot be read without running code: {error}"
            ) from None
        if names != _unwrapped(self._names):
            raise CorruptCheckpoint(
                f"the state of {self.name} is of other parameters or groups, or of "
                f"another order: it has {_text(names)}, the optimizer "
                f"{_text(self._names)}; load the weights alone"
            )
        optimizer = self.optimizer
        try:
            # load_state_dict() converts states to the parameters' dtype.
            with self._on_host(), self._looking_fp32():
                optimizer.load_state_dict(state)
            loaded = dict(optimizer.state), optimizer.param_groups
        except Exception as error:  # noqa: BLE001  the optimizer may raise anything
            raise CorruptCheckpoint(
                f"{self.name} does not take the state: {reason_of(error)}"
            ) from None
        finally:
            optimizer.state, optimizer.param_groups = self._state, self._groups
        self._require_finite(loaded[0])
        return loaded

    def take(self, loaded: tuple[dict[Any, Any], Groups]) -> None:
        """Applies the state from check(). Groups and states stay the same objects."""
        state, groups = loaded
        self._state.clear()
        self._state.update(state)
        for group, saved in zip(self._groups, groups, strict=True):
            kept = {key: group[key] for key in ("params", "param_names")}
            group.clear()
            group.update({**saved, **kept})

    # ---- called by the engine

    def raise_error(self, comm: _core.Communicator) -> None:
        """Raises the exception of the last step(), and makes the other ranks raise an
        error.
        """
        error, self._error = self._error, None
        if error is not None:
            comm.give_up(f"{self.name}.step(): {reason_of(error)}")
            raise error

    def state_of(self, name: str, number: int, key: str) -> torch.Tensor:
        """Returns a copy of a tensor that the optimizer keeps for its parameter
        `number`. Local.

        Raises InvalidArgument naming the existing tensors if there is no tensor `key`.
        """
        entry = self._state.get(self._parameters[number], {})
        value = entry.get(key)
        if not isinstance(value, torch.Tensor):
            raise InvalidArgument(
                f"key must be one of {sorted(entry)}, which {self.name} keeps of "
                f"'{name}', got {key!r}"
            )
        return value.detach().clone()

    @property
    def _names(self) -> list[list[str]]:
        return [list(group["param_names"]) for group in self._groups]

    def _require_finite(self, state: dict[Any, Any]) -> None:
        for number, entry in enumerate(state.values()):
            for key, value in entry.items() if isinstance(entry, dict) else ():
                is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
                if is_float and not bool(value.isfinite().all()):
                    raise CorruptCheckpoint(
                        f"the state of {self.name} has values that are not finite: {key} "
                        f"of parameter {number}"
                    )

    @contextmanager
    def _working_on(self, params: torch.Tensor, grads: torch.Tensor) -> Iterator[None]:
        with self._on_host(), _kept(self._parameters):
            for p, offset in zip(self._parameters, self._offsets, strict=True):
                size, shape = p.numel(), p.shape
                p.data = params.narrow(0, offset, size).view(shape)
                p.grad = grads.narrow(0, offset, size).view(shape)
            yield

    @contextmanager
    def _on_host(self) -> Iterator[None]:
        own = [group["params"] for group in self._groups]
        for group in self._groups:
            group["params"] = [self._stand_ins.get(id(p), p) for p in group["params"]]
        try:
            yield
        finally:
            for group, params in zip(self._groups, own, strict=True):
                group["params"] = params

    @contextmanager
    def _looking_fp32(self) -> Iterator[None]:
        # Parameters that are not trained are included.
        every = [p for group in self._groups for p in group["params"]]
        with _kept(every):
            for p in every:
                if p.is_floating_point():
                    p.data = torch.zeros(()).expand(p.shape)
            yield


def _unwrapped(names: Any) -> list[list[str]]:
    return [[_core.without_wrappers(name) for name in group] for group in names]


@contextmanager
def _kept(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """Removes gradients for its block, and restores values and gradients at the end."""
    homes = [(p, p.data, p.grad) for p in parameters]
    try:
        for p in parameters:
            p.grad = None
        yield
    finally:
        for p, data, grad in homes:
            p.grad = None  # it may have another dtype
            p.data = data
            p.grad = grad


def _on_host(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    return {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in state.items()}


def _floats(memory: memoryview) -> torch.Tensor:
    if len(memory) == 0:
        return torch.empty(0)
    return torch.frombuffer(memory, dtype=torch.float32)


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    return f"{getattr(value, 'name', value)!s:.200}"


_OTHERWISE = ("amsgrad", "maximize", "capturable", "differentiable")
_ADAMS = (torch.optim.Adam, torch.optim.AdamW)


def take_over(
    optimizer: Any, parameters: Any, config: _core.Config, rank: int
) -> tuple[torch.optim.Optimizer, Client | None]:
    """Writes the settings of `optimizer` into `config`, and returns the optimizer.
    Collective if `optimizer` is a callable that makes a Thinwire optimizer. Groups stay
    the same objects, so that changes to them reach the engine. A Thinwire optimizer is
    closed. An optimizer without an equivalent in Thinwire makes its own steps through
    the returned Client.

    Raises InvalidArgument naming a value that is not an optimizer or cannot be
    converted. Raises FailedPrecondition if a torch optimizer that would be converted
    has already made steps.
    """
    if not isinstance(optimizer, torch.optim.Optimizer) and callable(optimizer):
        optimizer = optimizer(parameters)
    if isinstance(optimizer, _Optimizer):
        _of_ours(optimizer, config)
    elif not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer)
        raise InvalidArgument(
            f"optimizer: {kind.__module__}.{kind.__qualname__} is no optimizer; give one "
            "of thinwire's or of torch's, or name one in the configuration "
            '("optimizer": {"type": "OneBitAdam"})'
        )
    elif type(optimizer) in _ADAMS and not _has_more(optimizer):
        _of_torch(optimizer, config, rank)
    else:
        client = Client(optimizer)
        client.tell(config)
        if rank == 0:
            logger.info(
                "optimizer: %s makes its own steps, of exact averages", client.name
            )
        return optimizer, client
    return optimizer, None


def _has_more(adam: torch.optim.Optimizer) -> bool:
    return any(group.get(key) for group in adam.param_groups for key in _OTHERWISE)


def _of_ours(optimizer: _Optimizer, config: _core.Config) -> None:
    optimizer._require_no_step("initialize")
    own = optimizer._made.config
    config.copy_optimizer(own)
    config.lagged_clipping = own.lagged_clipping
    if own.gradient_clipping > 0:
        config.gradient_clipping = own.gradient_clipping
    config.comm = own.comm
    config.precision.check_grad_overflow = own.precision.check_grad_overflow
    optimizer.close()


def _of_torch(
    optimizer: torch.optim.Optimizer, config: _core.Config, rank: int
) -> None:
    if optimizer.state:
        raise FailedPrecondition(
            "optimizer: it has made steps, and its moments would be lost; give it before "
            "the first step"
        )
    first = optimizer.param_groups[0]
    decoupled = {_is_decoupled(optimizer, group) for group in optimizer.param_groups}
    if len(decoupled) > 1:
        raise InvalidArgument(
            "optimizer: decoupled_weight_decay must be the same in all groups"
        )
    keywords = {key: first[key] for key in GROUP_KEYS}
    keywords["adam_w_mode"] = decoupled.pop()
    config.set_optimizer("Adam", to_text(keywords))
    if rank == 0:
        logger.info(
            "optimizer: torch's %s becomes Thinwire's, with the same settings",
            type(optimizer).__name__,
        )


def _is_decoupled(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    if isinstance(optimizer, torch.optim.AdamW):
        return True
    return bool(group.get("decoupled_weight_decay", False))

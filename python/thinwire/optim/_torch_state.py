# SPDX-License-Identifier: Apache-2.0
"""Conversion of the moments of torch.optim.Adam and AdamW."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch

from ..errors import CorruptCheckpoint, InvalidArgument
from ._native import Native

MOMENTS = ("exp_avg", "exp_avg_sq")
_CONVERSION = (
    "Convert the checkpoint first: python examples/python/states_from_deepspeed.py "
    "mp_rank_00_model_states.pt OUT --freeze-step N; then thinwire.load('OUT', optimizer)"
)
# Keys that only DeepSpeed's 1-bit optimizers use. Not all of them are always there:
# residuals may be missing after a load, or for the last parameter of a group.
_DEEPSPEED = ("tensor_size", "server_chunk_size", "worker_error", "lamb_coeff_freeze")


def of_torch(
    native: Native,
    num_groups: int,
    entries: Mapping[Hashable, Mapping[str, Any]],
    ids: Mapping[int, Hashable],
) -> dict[str, Any]:
    """Returns a state of the native optimizer in its exact stage, with both moments and
    the step.

    A parameter without an entry, such as one that never had a gradient, gets zeros.
    Raises InvalidArgument if the state is not from an Adam optimizer, and
    CorruptCheckpoint if an entry does not fit.
    """
    rule = _rule(native.config.optimizer_name())
    size = native.layout.size
    state: dict[str, Any] = {name: torch.zeros(size) for name in MOMENTS}
    views = {name: native.memory.views(state[name]) for name in MOMENTS}
    steps: dict[int, str] = {}
    for k, place in enumerate(native.places):
        entry = entries.get(ids[id(place.tensor)])
        if not entry:
            continue
        _require_adam(place.name, entry)
        step = float(entry["step"])
        if step < 0 or not step.is_integer():
            raise CorruptCheckpoint(
                f"step of parameter '{place.name}' must be a whole number >= 0 in the "
                f"state, got {step:g}"
            )
        steps.setdefault(int(step), place.name)
        for name in MOMENTS:
            if entry[name].shape != place.tensor.shape:
                raise CorruptCheckpoint(
                    f"{name} of parameter '{place.name}' is of shape "
                    f"{tuple(entry[name].shape)} in the state, the parameter of "
                    f"{tuple(place.tensor.shape)}"
                )
            views[name][k].copy_(entry[name])
    if len(steps) > 1:
        told = ", ".join(f"'{name}' {step}" for step, name in steps.items())
        raise InvalidArgument(
            f"the state's parameters have taken different numbers of steps ({told}), "
            "and this optimizer counts one for all"
        )
    rates = [native.optimizer.learning_rate(g) for g in range(num_groups)]
    state |= {"optimizer": rule, "step": next(iter(steps), 0), "skipped_steps": 0}
    state["learning_rates"] = torch.tensor(rates, dtype=torch.float64)
    if native.memory.params.dtype != torch.float32:
        on_host = [p.tensor.detach().to("cpu", torch.float32) for p in native.places]
        state["masters"] = torch.cat([values.reshape(-1) for values in on_host])
    return state


def _rule(name: str) -> str:
    if name == "zero_one_adam":
        raise InvalidArgument(
            "0/1 Adam has no exact stage that could begin with the moments of another "
            "optimizer: load the parameters only"
        )
    return "lamb" if name in ("lamb", "onebit_lamb") else "adam"


def refuse_deepspeed(state_dict: Mapping[str, Any]) -> None:
    """Raises InvalidArgument for states of DeepSpeed's 1-bit optimizers, because their
    variance is older than their momentum. Such a state may be inside the state of a
    16-bit wrapper.
    """
    wrapped = state_dict.get("optimizer_state_dict", state_dict)
    entries = wrapped.get("state") if isinstance(wrapped, Mapping) else None
    for number, entry in entries.items() if isinstance(entries, Mapping) else ():
        for key in _DEEPSPEED:
            if isinstance(entry, Mapping) and key in entry:
                raise InvalidArgument(
                    f"the state of parameter {number!r} has {key}: it is of a 1-bit "
                    f"optimizer of DeepSpeed. {_CONVERSION}"
                )


def _require_adam(name: str, entry: Mapping[str, Any]) -> None:
    if "denominator" in entry:
        raise InvalidArgument(
            f"the state of parameter '{name}' is of Thinwire's compressed stage, without "
            "the record 'thinwire' that belongs to it, which holds residuals "
            "(torch.distributed.checkpoint leaves it out): use thinwire.save and "
            "thinwire.load"
        )
    if "max_exp_avg_sq" in entry:
        raise InvalidArgument(
            f"the state of parameter '{name}' has max_exp_avg_sq: of amsgrad, which "
            "Thinwire does not have"
        )
    missing = [key for key in (*MOMENTS, "step") if key not in entry]
    if missing:
        raise InvalidArgument(
            f"the state of parameter '{name}' lacks {missing[0]}: it is neither of "
            "Thinwire nor of torch.optim.Adam or AdamW"
        )


class ParameterState(dict[str, Any]):
    """State of a parameter: `step`, and exp_avg and exp_avg_sq if the present stage has
    them. Every access makes copies on the CPU, in fp32 and in the parameter's shape, so
    writing into the copies has no effect. Local.
    """

    def __init__(
        self,
        step: torch.Tensor,
        moment: Callable[[int, str], torch.Tensor | None],
        number: int,
    ) -> None:
        """`moment` is a method of the optimizer, which may return None."""
        super().__init__(step=step)
        self._moment, self._number = weakref.WeakMethod(moment), number

    def _read(self, key: str) -> torch.Tensor | None:
        moment = self._moment()
        return None if moment is None else moment(self._number, key)

    def __missing__(self, key: str) -> torch.Tensor:
        value = self._read(key) if key in MOMENTS else None
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (
            key in MOMENTS and self._read(str(key)) is not None
        )

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

# SPDX-License-Identifier: Apache-2.0
"""What every optimizer of the device path is: the methods of the native Optimizer, on tensors
of a device."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from typing import Any

import torch

from ..errors import (
    CorruptCheckpoint,
    FailedPrecondition,
    InvalidArgument,
    Unavailable,
)
from .loss_scale import LossScaler
from .model import Model, Report, StepInput
from .rows import ROW
from .states import State, load


class DeviceOptimizer(ABC):
    """Flat arrays have `size` elements, with parameter k at `offsets[k]`, and 0 in between.

    Parameters of fp32 are updated where they lie. Those of 16 bits have fp32 masters here, made of
    the parameters by read_masters() or in the first step.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.layout = ""
        self.offsets = model.rows.offsets
        self.size = model.rows.size
        self.steps = 0
        self.skipped_steps = 0
        self._masters: torch.Tensor | None = None
        self._closed = False
        is_fp16 = model.settings.dtype == torch.float16
        self._scaler = LossScaler(model.settings.loss_scale) if is_fp16 else None

    # ---- steps

    @property
    @abstractmethod
    def phase(self) -> str:
        """How the next step will average: "exact", "compressed" or "local"."""

    @property
    def freeze_step(self) -> int | None:
        """As the native optimizer's."""
        own = self.model.settings.own
        if hasattr(own, "stages"):
            return int(own.stages().var_freeze_step)
        planned = getattr(own, "planned_freeze_step", None)
        return None if planned is None else int(planned())

    def take_notes(self) -> list[str]:
        """As the native optimizer's: a load changes nothing here."""
        return []

    def set_exp_avg_mask(self, group: int, mask: torch.Tensor) -> None:
        """Raises Unavailable: masks are those of construction."""
        raise Unavailable(
            f"param_groups[{group}]['exp_avg_mask'] cannot change on the device path"
        )

    @abstractmethod
    def _step(self, step: StepInput) -> None: ...

    def step(
        self, params: torch.Tensor, grads: torch.Tensor, loss_scale: float = 1.0
    ) -> Report:
        """Collective: updates `params` from the ranks' `grads`, both flat; gradients are fp32 or
        16 bits long and unspecified afterwards. They arrive multiplied by `loss_scale`."""
        self._require("params", params, [self.model.settings.dtype])
        self._require("grads", grads, [torch.float32, torch.float16, torch.bfloat16])
        if not (math.isfinite(loss_scale) and loss_scale > 0):
            raise InvalidArgument(
                f"loss_scale must be finite and > 0, got {loss_scale}"
            )
        begin, exchange = time.perf_counter(), self.model.exchange
        sent, collectives, waited = (
            exchange.bytes_sent,
            exchange.collectives,
            exchange.seconds,
        )
        loss_scale *= self.loss_scale
        report = Report(phase=self.phase, loss_scale=loss_scale)
        with torch.no_grad():
            step = StepInput(
                self._values(params), grads.view(-1, ROW), loss_scale, report
            )
            if self._scaler is None:
                self._step(step)
            else:
                self._scaled_step(step, self._scaler)
            if report.applied:
                self._write(params)
            else:
                self.skipped_steps += 1
        report.bytes_sent = exchange.bytes_sent - sent
        report.bytes_between_hosts = report.bytes_sent
        report.collectives = exchange.collectives - collectives
        report.messages = report.collectives * (exchange.size - 1)
        report.exchange_seconds = exchange.seconds - waited
        report.comm_busy_seconds = report.exchange_seconds
        report.seconds = time.perf_counter() - begin
        return report

    def _scaled_step(self, step: StepInput, scaler: LossScaler) -> None:
        step.is_scaled = True
        step.is_last_chance = scaler.is_last_chance
        grads = step.grads.clone() if step.is_last_chance else step.grads
        self._step(step)
        if not step.report.applied and step.is_last_chance:
            self.skipped_steps += 1
            scaler.stop(self.model, grads, step.report, self.steps)
        scaler.update(not step.report.applied)

    def _require(
        self, name: str, values: torch.Tensor, dtypes: list[torch.dtype]
    ) -> None:
        if self._closed:
            raise FailedPrecondition("step: this optimizer is closed")
        if values.dtype not in dtypes or values.shape != (self.size,):
            raise InvalidArgument(
                f"{name} must be {self.size} elements of "
                f"{' or '.join(str(d).removeprefix('torch.') for d in dtypes)}, got "
                f"{list(values.shape)} of {str(values.dtype).removeprefix('torch.')}"
            )
        if values.device != self.model.rows.device or not values.is_contiguous():
            raise InvalidArgument(
                f"{name} must be contiguous on {self.model.rows.device}, got {values.device}"
            )

    def _values(self, params: torch.Tensor) -> torch.Tensor:
        """What a step updates, as rows: the parameters, or their masters."""
        if self.model.settings.dtype == torch.float32:
            return params.view(-1, ROW)
        if self._masters is None:
            self._masters = params.float().view(-1, ROW)
        return self._masters

    def _write(self, params: torch.Tensor) -> None:
        if self._masters is not None:
            params.copy_(self._masters.view(-1))

    def synchronize(self, params: torch.Tensor) -> None:
        """Collective: makes parameters equal on all ranks, where they differ (0/1 Adam)."""
        self._require("params", params, [self.model.settings.dtype])
        with torch.no_grad():
            self._synchronize(self._values(params))
            self._write(params)

    def _synchronize(self, params: torch.Tensor) -> None:
        """Ranks differ in 0/1 Adam only."""

    @property
    def steps_behind(self) -> int:
        """Local steps since the last exchange (0/1 Adam)."""
        return 0

    @property
    def loss_scale(self) -> float:
        """Of fp16 parameters, for the next backward; others need none: 1."""
        return 1.0 if self._scaler is None else self._scaler.scale

    @property
    def residual_ratio(self) -> float:
        return 0.0

    # ---- options

    def learning_rate(self, group: int) -> float:
        return self.model.settings.groups[self._group(group)].learning_rate

    def set_learning_rate(self, group: int, learning_rate: float) -> None:
        """Local, from the next step on; all ranks must do the same."""
        self._set(group, "learning_rate", learning_rate)

    def set_weight_decay(self, group: int, weight_decay: float) -> None:
        """Local, from the next step on; all ranks must do the same."""
        self._set(group, "weight_decay", weight_decay)

    def _set(self, group: int, name: str, value: float) -> None:
        if not (math.isfinite(value) and value >= 0):
            raise InvalidArgument(f"{name} must be finite and >= 0, got {value}")
        setattr(self.model.settings.groups[self._group(group)], name, float(value))

    def _group(self, group: int) -> int:
        count = len(self.model.settings.groups)
        if not 0 <= group < count:
            raise InvalidArgument(f"group must be below {count}, got {group}")
        return group

    # ---- parameters

    def masters(self) -> torch.Tensor | None:
        """A flat copy, fp32; None where parameters are their own masters."""
        return None if self._masters is None else self._masters.view(-1).clone()

    def read_masters(self, params: torch.Tensor) -> None:
        """Local: parameters (flat, of any dtype) were loaded from elsewhere."""
        if params.shape != (self.size,):
            raise InvalidArgument(
                f"params must be {self.size} elements, got {list(params.shape)}"
            )
        values = params.detach().to(self.model.rows.device).float().view(-1, ROW)
        if self.model.settings.dtype != torch.float32:
            self._masters = values.clone()
        self._begin_anew(values)

    def _begin_anew(self, params: torch.Tensor) -> None:
        """0/1 Adam forgets its updates since the last exchange."""

    def _repeat_local_steps(self, params: torch.Tensor) -> None:
        """0/1 Adam: parameters of the last exchange become what this rank had made of them."""

    def write_params(self, params: torch.Tensor) -> None:
        """Local: flat parameters of 16 bits become their masters, rounded."""
        self._require("params", params, [self.model.settings.dtype])
        self._write(params)

    def exchanged_params(self, params: torch.Tensor) -> torch.Tensor:
        """A flat copy of the parameters of the last exchange, the same on all ranks."""
        return params.clone()

    # ---- state

    def state_dict(self) -> State:
        """Local: scalars, and arrays without gaps, under the names of the native optimizer; what
        differs from rank to rank is this rank's. `server_error` is of the rows that this rank
        serves here, and `device_world` says that it is: see native_state()."""
        rates = [group.learning_rate for group in self.model.settings.groups]
        state: State = {
            "optimizer": self.model.settings.name,
            "layout": self.layout,
            "step": self.steps,
            "skipped_steps": self.skipped_steps,
            "learning_rates": torch.tensor(rates, dtype=torch.float64),
            "device_world": self.model.world,
            "device_rank": self.model.exchange.rank,
            "exp_avg": self.model.rows.dense(self.model.exp_avg),
        }
        if self.model.exp_avg_sq is not None:
            state["exp_avg_sq"] = self.model.rows.dense(self.model.exp_avg_sq)
        if self._masters is not None:
            behind = self.steps_behind > 0
            masters = self._masters.view(-1)
            masters = self.exchanged_params(masters) if behind else masters
            state["masters"] = self.model.rows.dense(masters)
        if self._scaler is not None:
            self._scaler.add_to(state)
        self._own_state(state)
        return state

    def _own_state(self, state: State) -> None:
        """Adds what an optimizer keeps beside its moments."""

    def _read_own(self, saved: Any) -> Any:
        """Checks what _own_state() has added; returns what puts it in place."""
        return lambda: None

    def load_state_dict(self, state: State) -> None:
        """Every rank loads what it saved; the next step continues with the same bits. Raises
        CorruptCheckpoint naming what does not fit, before anything changes. Parameters are the
        caller's."""
        self._require_owner(state)
        load(self, state)

    def native_state(self) -> State:
        """Collective: the same for adopt() of the native optimizer on this rank, with the
        residuals of what this rank serves there."""
        state = self.state_dict()
        del state["device_world"], state["device_rank"]
        return state

    def adopt(self, state: State) -> None:
        """Collective: takes up a state_dict() of the native optimizer, of the same rank and
        number of ranks. Raises CorruptCheckpoint naming what does not fit."""
        own = (self.model.exchange.rank, self.model.world)
        saved = (state.get("rank", own[0]), state.get("world_size", own[1]))
        if "worker_error" in state and saved != own:
            raise CorruptCheckpoint(
                f"residuals of rank {saved[0]} of {saved[1]} do not fit rank {own[0]} of {own[1]}"
            )
        state = {k: v for k, v in state.items() if k not in ("rank", "world_size")}
        self._require_owner({k: v for k, v in state.items() if k != "worker_error"})
        load(self, self._from_native(state))

    def _from_native(self, state: State) -> State:
        return state

    def _require_owner(self, state: State) -> None:
        if state.get("layout", self.layout) != self.layout:
            raise CorruptCheckpoint(
                "the state is of another parameter layout: it begins with "
                f"'{state['layout'][:60]}', this one with '{self.layout[:60]}'"
            )
        if state.get("optimizer") != self.model.settings.name:
            raise CorruptCheckpoint(
                f"the state's optimizer is {state.get('optimizer')}, this optimizer's "
                f"{self.model.settings.name}"
            )
        own = (self.model.exchange.rank, self.model.world)
        saved = (state.get("device_rank"), state.get("device_world"))
        if "worker_error" in state and saved != own:
            whose = (
                "the native optimizer"
                if None in saved
                else f"rank {saved[0]} of {saved[1]}"
            )
            raise CorruptCheckpoint(
                f"residuals of {whose} do not fit rank {own[0]} of {own[1]} of the device path"
                + ("; adopt() takes those of a native state" if None in saved else "")
            )

    def close(self) -> None:
        """Idempotent; the group is its owner's."""
        self._closed = True

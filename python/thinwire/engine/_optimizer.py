# SPDX-License-Identifier: Apache-2.0
"""`engine.optimizer`: groups for schedules and logs; the engine itself makes steps."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import torch

from .. import _core
from .._agreement import agreed
from .._memory import tensors
from ..comm.calls import in_call
from ..errors import FailedPrecondition, InvalidArgument, Unavailable
from ..optim._deepspeed import DeepSpeedNames
from ..optim._edits import (
    Settings,
    may_be_behind,
    number_in,
    require_sizes,
    set_rate,
    sizes_of,
)
from ..optim._experts import KEY as EXPERTS
from ..optim._options import names_of_python, number_of, rate_of
from ..optim._parameters import Place
from ..optim._state import saved_number
from ..optim._torch_state import ParameterState, refuse_deepspeed
from ._client import Client
from ._groups import Groups, defaults_of
from ._training import Training
from ._unavailable import refusal
from ._values import Values
from .leaders import Core

# Key in states: the rate of each group that was set by hand, and NaN for other groups.
_BY_HAND = "engine_learning_rates"


class EngineOptimizer(DeepSpeedNames, torch.optim.Optimizer):
    """A torch.optim.Optimizer whose param_groups take effect, although the engine makes
    the steps. A learning rate, weight decay or mask that the program writes into a
    group applies from the next step on.
    """

    def __init__(
        self,
        config: _core.Config,
        groups: Groups,
        client: Client | None,
        places: list[Place],
    ) -> None:
        """Makes the optimizer. `groups` are not copied, and `client` reads them.
        Local.
        """
        self._values: weakref.ref[Values] | None = None
        self._backward: weakref.WeakMethod[Callable[..., Any]] | None = None
        self._has_own_schedule = False
        self._is_made = False
        of_ours = client is None
        super().__init__(groups, defaults_of(config) if of_ours else {})
        self._is_made = True
        self._settings = Settings(self.param_groups) if of_ours else None
        self._sizes = sizes_of(self.param_groups)
        self._bases = [float(group["lr"]) for group in self.param_groups]
        self._places = places
        self._by_hand: set[int] = set()
        self._seen = list(self._bases)
        step = torch.zeros(())
        parameters = [p for group in self.param_groups for p in group["params"]]
        if client is not None:
            self.state = client.optimizer.state
        for number, parameter in enumerate(parameters if of_ours else ()):
            self.state[parameter] = ParameterState(step, self._moment, number)
        self._parameters = parameters
        self._step_tensor = step

    def begin(
        self, values: Values, backward: Callable[..., Any], has_own_schedule: bool
    ) -> None:
        """Connects the optimizer to the finished engine. `has_own_schedule` says
        whether the program has a scheduler that sets rates. Local.
        """
        self._values = weakref.ref(values)
        self._backward = weakref.WeakMethod(backward)
        self._has_own_schedule = has_own_schedule

    def _moment(self, number: int, key: str) -> torch.Tensor | None:
        training = self._made
        parameter = self._parameters[number]
        is_collective = training.is_sharded or training.hosts is not None
        if is_collective or not parameter.requires_grad:
            return None  # use Engine.full_state() instead
        try:
            return self._whole.full_state(parameter, key)
        except InvalidArgument:
            return None

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises FailedPrecondition for an attribute that is missing or read-only, such
        as freeze_step, because nothing would read the value.
        """
        members = self.__dict__
        of_class = getattr(type(self), name, None)
        is_constant = isinstance(of_class, property) and of_class.fset is None
        is_known = name.startswith("_") or name in members or of_class is not None
        if members.get("_is_made", False) and (is_constant or not is_known):
            raise FailedPrecondition(
                f"engine.optimizer.{name}: there is no such attribute to set; give the "
                "setting to initialize(), in the configuration or in the optimizer"
            )
        super().__setattr__(name, value)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises FailedPrecondition: an engine's parameters are fixed at construction."""
        if self._is_made:
            raise FailedPrecondition(
                "add_param_group: an engine's parameters are those that it was made with; "
                "make a new engine"
            )
        super().add_param_group(param_group)

    def step(self, closure: Any = None) -> NoReturn:
        """Raises FailedPrecondition: engine.step() makes steps."""
        raise FailedPrecondition(
            "engine.step() updates the parameters: remove optimizer.step()"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does the same as Engine.zero_grad()."""
        self._made.require_no_window("zero_grad")

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, or with ZeRO this rank's part of it. Local. For files use
        Engine.save_checkpoint(). The keys cur_scale, dynamic_loss_scale, overflow and
        clip_grad exist for DeepSpeed's users; load_state_dict() ignores them.
        """
        training = self._made
        core = training.native
        training.memory.make_writable()
        training.take_in_edits()
        self.tell_rates(core)
        groups = [
            {k: v for k, v in group.items() if k not in ("params", EXPERTS)}
            for group in self.param_groups
        ]
        return {
            "state": {},
            "param_groups": groups,
            "thinwire": tensors(core.state_dict()),
            # Keys for programs that read DeepSpeed's states.
            "cur_scale": self.cur_scale,
            "dynamic_loss_scale": self.dynamic_loss_scale,
            "overflow": self.overflow,
            "clip_grad": self.clip_grad,
        }

    @in_call("load_state_dict()")
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the result of state_dict() from the same rank and number of ranks.
        Collective with ZeRO, lean 1-bit Adam or a leader per host.

        The configuration's schedule continues from the state's number of steps, except
        for groups whose rate the program has written. Without a schedule, rates come
        from the state.

        Raises InvalidArgument for another optimizer's state, and CorruptCheckpoint if a
        part of the state does not fit.
        """
        training = self._made
        core = training.native

        def check() -> tuple[list[float], dict[str, Any]]:
            rates = self._saved_rates(state_dict)
            training.memory.make_writable()
            return rates, dict(state_dict["thinwire"])

        is_collective = training.is_sharded
        rates, state = agreed(training.comm, check) if is_collective else check()
        core.load_state_dict(state)
        training.written(may_be_behind(training.config, core.phase))
        self._take_rates(rates, state.get(_BY_HAND))
        self.show_rates(training.config, core.steps)

    def _saved_rates(self, state_dict: dict[str, Any]) -> list[float]:
        """Returns a state's rates. Raises InvalidArgument and CorruptCheckpoint."""
        if not isinstance(state_dict, Mapping) or "thinwire" not in state_dict:
            if isinstance(state_dict, Mapping):
                refuse_deepspeed(state_dict)
            raise InvalidArgument(
                "state_dict: it is of another optimizer; an engine takes its own, and "
                "checkpoints of thinwire.save"
            )
        saved = state_dict["param_groups"]
        if len(saved) != len(self.param_groups):
            raise InvalidArgument(
                f"state_dict: it has {len(saved)} groups of parameters, the engine "
                f"{len(self.param_groups)}"
            )
        return [
            saved_number(f"param_groups[{index}]['lr'] of the state", group["lr"])
            for index, group in enumerate(saved)
        ]

    def _take_rates(self, rates: list[float], by_hand: torch.Tensor | None) -> None:
        # Without this update, the next step would treat the state's rates as set by
        # hand.
        follows_schedule = not self._made.config.schedule.is_constant
        self._by_hand.clear()
        self._seen = list(rates if follows_schedule else self._bases)
        for number, group in enumerate(self.param_groups):
            if by_hand is not None and not bool(by_hand[number].isnan()):
                self._by_hand.add(number)
                self._seen[number] = float(by_hand[number])
            set_rate(group, rates[number])

    @property
    def overflow(self) -> bool:
        """Whether the last step was skipped because of a non-finite gradient."""
        report = self._made.report
        return report is not None and report.at_boundary and not report.applied

    # ---- members of DeepSpeed's FP16 wrappers; a member without a meaning here raises

    @property
    def custom_loss_scaler(self) -> bool:
        """Always False, because the engine manages the loss scale."""
        return False

    @property
    def external_loss_scale(self) -> None:
        """Always None: see loss_scale."""

    @property
    def loss_scale(self) -> float:
        """Factor on the next loss. Setting it is collective and allowed between two
        windows. A dynamic scale continues from the new value.

        Setting raises FailedPrecondition unless parameters are float16, InvalidArgument
        outside the limits or if ranks differ, and TypeError for a value that is no
        number.
        """
        return self._made.native.loss_scale

    @loss_scale.setter
    def loss_scale(self, scale: float) -> None:
        core = self._made.made
        try:
            number = number_of("loss_scale", scale)
        except (TypeError, InvalidArgument):
            with suppress(InvalidArgument, FailedPrecondition):
                core.set_loss_scale(math.nan)  # ranks compare it, so all refuse
            raise
        core.set_loss_scale(number)

    cur_scale = loss_scale

    @property
    def dynamic_loss_scale(self) -> bool:
        """Whether the loss scale changes from step to step."""
        return self._made.has_dynamic_scale

    dynamic = dynamic_loss_scale

    @property
    def _global_grad_norm(self) -> float | None:
        """Result of Engine.get_global_grad_norm()."""
        report = self._made.report
        return None if report is None else report.grad_norm

    @property
    def optimizer(self) -> EngineOptimizer:
        """This object, which acts as both DeepSpeed's wrapper and the optimizer inside
        it.
        """
        return self

    @property
    def loss_scaler(self) -> EngineOptimizer:
        """This object, which has loss_scale, cur_scale and dynamic."""
        return self

    @property
    def _stepper(self) -> Core:
        return self._made.native

    @property
    def clip_grad(self) -> float:
        """Global norm to which gradients are clipped; 0 for no clipping."""
        return self._made.config.gradient_clipping

    def set_lr(self, lr: float) -> None:
        """Sets the learning rate of every group from the next step on, like writing it
        into param_groups. Local; all ranks must make the same call.

        Raises TypeError if the rate is not a number, and InvalidArgument unless it is
        finite and >= 0.
        """
        rate = rate_of("lr", lr)
        for group in self.param_groups:
            set_rate(group, rate)

    def get_lr(self) -> float:
        """Returns the learning rate of group 0 in the next step."""
        return float(self.param_groups[0]["lr"])

    def backward(
        self, loss: torch.Tensor, create_graph: bool = False, retain_graph: bool = False
    ) -> None:
        """Runs Engine.backward(), which scales the loss. The caller divides the loss by
        gradient_accumulation_steps.

        Raises Unavailable for `create_graph`.
        """
        if create_graph:
            raise Unavailable(
                "backward: create_graph must be False, gradients are sent as they are made; "
                "torch.autograd.grad(loss, inputs, create_graph=True) before it gives those "
                "of higher order"
            )
        _ = self._made
        backward = self._backward() if self._backward is not None else None
        assert backward is not None
        backward(loss, retain_graph=retain_graph, scale_wrt_gas=False)

    def refresh_fp32_params(self) -> None:
        """Sets masters to the present parameters, which discards the masters'
        additional bits. Local, between two windows; all ranks must make the same call.
        """
        self._made.read_masters()

    @property
    def fp16_groups(self) -> list[list[torch.Tensor]]:
        """Parameters of each group, whatever their dtype."""
        return [list(group["params"]) for group in self.param_groups]

    @property
    def fp32_groups(self) -> list[list[torch.Tensor]]:
        """Copies of the masters of each group, in fp32. Collective like
        Engine.full_parameter(). Writing into the copies has no effect: use
        engine.set_full_parameter().
        """
        values = self._whole
        return [
            [values.full_parameter(p) for p in group["params"] if p.requires_grad]
            for group in self.param_groups
        ]

    def get_lamb_coeffs(self) -> list[float]:
        """Returns Engine.get_lamb_coeffs()."""
        return self._made.made.lamb_coeffs()

    # ---- called by the engine

    def tell_rates(self, core: Core) -> None:
        """Passes on the settings that were written into groups since the last step.
        Local, before a step.

        Raises FailedPrecondition naming a setting that cannot change, and the errors of
        Settings.apply() for an invalid rate, decay or mask.
        """
        require_sizes(self._sizes, self.param_groups)
        if self._settings is not None:  # a client optimizer reads its own groups
            for number, group in enumerate(self.param_groups):
                self._settings.require_fixed(number, group)
            self._settings.apply_decays(self.param_groups, core)
            self._settings.apply_masks(self.param_groups, core, self._places)
        rates = [number_in(k, group, "lr") for k, group in enumerate(self.param_groups)]
        for number, rate in enumerate(rates):
            if rate != self._seen[number]:
                with names_of_python():
                    core.set_learning_rate(rate, number)
                self._seen[number] = rate
                self._by_hand.add(number)

    def show_rates(self, config: _core.Config, steps: int) -> None:
        """Shows the schedule's next rates, unless the program has written others."""
        self._step_tensor.fill_(steps)
        for number, group in enumerate(self.param_groups):
            is_written = float(group["lr"]) != self._seen[number]
            if number not in self._by_hand and not is_written:
                rate = config.schedule.rate(self._bases[number], steps)
                self._seen[number] = rate
                set_rate(group, rate)

    def loaded(self, core: Core, scalars: dict[str, Any]) -> None:
        """Takes the rates of a loaded checkpoint. `scalars` contains the rates set by
        hand. Local.
        """
        self._by_hand.clear()
        if self._settings is None:
            self._loaded_client(core)
        elif not self._has_own_schedule:  # otherwise load() writes its first rates
            self._seen = [float(group["lr"]) for group in self.param_groups]
        for number, group in enumerate(self.param_groups):
            if f"learning_rate/{number}" in scalars:
                self._by_hand.add(number)
                self._seen[number] = core.learning_rate(number)
                set_rate(group, self._seen[number])

    def _loaded_client(self, core: Core) -> None:
        # Loading has replaced the client's groups. A schedule of the configuration
        # continues.
        for number, group in enumerate(self.param_groups):
            self._seen[number] = core.learning_rate(number)
            if not self._made.config.schedule.is_constant:
                set_rate(group, self._seen[number])

    @property
    def _whole(self) -> Values:
        values = None if self._values is None else self._values()
        if values is None:
            raise FailedPrecondition(
                "this optimizer's engine is no more: make a new one"
            )
        return values

    @property
    def _made(self) -> Training:
        return self._whole.training


_INSTEAD = {
    "override_loss_scale": "set optimizer.loss_scale, from which a dynamic scale continues, "
    'or fix it by the configuration\'s "fp16": {"loss_scale": ...}',
    "unscale_and_clip_grads": "engine.step() does both in the pass that updates parameters; "
    "set gradient_clipping in the configuration",
    "step_fused_lamb": "engine.step() makes the step, whatever the optimizer",
}

for _name, _text in _INSTEAD.items():
    setattr(EngineOptimizer, _name, refusal(_name, _text))


class ConfigSchedule:
    """Scheduler of the configuration's learning rates. engine.step() advances it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def get_last_lr(self) -> list[float]:
        """Returns the rates of the next step, one per group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    get_lr = get_last_lr

    def step(self, *_: Any) -> NoReturn:
        """Raises FailedPrecondition: engine.step() advances the schedule."""
        raise FailedPrecondition(
            "engine.step() advances the configuration's schedule: remove "
            "lr_scheduler.step()"
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns an empty dict, because the engine saves the number of applied steps."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing: there is nothing to load."""

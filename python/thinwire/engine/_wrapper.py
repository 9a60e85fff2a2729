# SPDX-License-Identifier: Apache-2.0
"""Names that DeepSpeed's FP16 wrappers have on `engine.optimizer`."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from ..errors import FailedPrecondition, InvalidArgument, Unavailable
from ..optim._options import number_of, rate_of
from ..optim._settings import set_rate
from ._unavailable import refusal

if TYPE_CHECKING:
    from ._engine import Engine


class WrapperNames(torch.optim.Optimizer):
    """Names that have a meaning here. The others raise Unavailable and say what to use."""

    if TYPE_CHECKING:

        @property
        def _made(self) -> Engine: ...

    custom_loss_scaler = False
    """Always False: the engine has the loss scale."""
    external_loss_scale = None
    """Always None: see loss_scale."""

    @property
    def loss_scale(self) -> float:
        """Factor on the next loss. Setting it is collective, between two windows; a
        dynamic scale continues from it.

        Setting raises FailedPrecondition unless parameters are float16. It raises
        InvalidArgument outside the scale's limits and if ranks set different values,
        and TypeError if the value is no number.
        """
        return self._made.loss_scale()

    @loss_scale.setter
    def loss_scale(self, scale: float) -> None:
        core = self._made._made
        try:
            number = number_of("loss_scale", scale)
        except (TypeError, InvalidArgument):
            with suppress(InvalidArgument, FailedPrecondition):
                core.set_loss_scale(math.nan)  # ranks compare it, so all refuse
            raise
        core.set_loss_scale(number)

    cur_scale = loss_scale

    @property
    def clip_grad(self) -> float:
        """Global norm to which gradients are clipped; 0 for no clipping."""
        return self._made.gradient_clipping()

    def set_lr(self, lr: float) -> None:
        """Sets the learning rate of every group from the next step on, as if it were
        written into param_groups. Local; all ranks must make the same call.

        Raises TypeError if the rate is no number, and InvalidArgument unless finite, >=
        0.
        """
        rate = rate_of("lr", lr)
        for group in self.param_groups:
            set_rate(group, rate)

    def get_lr(self) -> float:
        """Returns the learning rate of group 0 in the next step."""
        return float(self.param_groups[0]["lr"])

    def backward(
        self,
        loss: torch.Tensor,
        create_graph: bool = False,
        retain_graph: bool = False,
    ) -> None:
        """Runs Engine.backward(): it scales the loss, but does not divide it by
        gradient_accumulation_steps, which the caller does here.

        Raises Unavailable for `create_graph`.
        """
        if create_graph:
            raise Unavailable(
                "backward: create_graph must be False, gradients are sent as they are made; "
                "torch.autograd.grad(loss, inputs, create_graph=True) before it gives those "
                "of higher order"
            )
        self._made.backward(loss, retain_graph=retain_graph, scale_wrt_gas=False)

    def refresh_fp32_params(self) -> None:
        """Sets masters to the present parameters, without the bits that 16 bits do not
        have. Local, between two windows; all ranks must make the same call.
        """
        engine = self._made
        engine._memory.home()
        engine._made.read_masters()
        engine._written(is_behind=False)

    @property
    def fp16_groups(self) -> list[list[torch.Tensor]]:
        """Parameters of each group, whatever their dtype."""
        return [list(group["params"]) for group in self.param_groups]

    @property
    def fp32_groups(self) -> list[list[torch.Tensor]]:
        """Copies of the masters of each group, in fp32. Collective with ZeRO. Writing
        into them has no effect: use engine.set_full_parameter().
        """
        engine = self._made
        return [
            [engine.full_parameter(p) for p in group["params"] if p.requires_grad]
            for group in self.param_groups
        ]

    def get_lamb_coeffs(self) -> list[float]:
        """Returns Engine.get_lamb_coeffs()."""
        return self._made.get_lamb_coeffs()


_INSTEAD = {
    "override_loss_scale": "set optimizer.loss_scale, from which a dynamic scale continues, "
    'or fix it by the configuration\'s "fp16": {"loss_scale": ...}',
    "unscale_and_clip_grads": "engine.step() does both in the pass that updates parameters; "
    "set gradient_clipping in the configuration",
    "step_fused_lamb": "engine.step() makes the step, whatever the optimizer",
}


for _name, _text in _INSTEAD.items():
    setattr(WrapperNames, _name, refusal(_name, _text))

# SPDX-License-Identifier: Apache-2.0
"""Loss scaling on which all ranks agree."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from .errors import InvalidArgument
from .optim._base import _Optimizer
from .optim._options import number_of

# Losses are multiplied in fp32.
_LEAST, _MOST = 2.0**-126, 2.0**127


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler for Thinwire's optimizers.

    torch's scaler finds only the overflows of a rank's own gradients. With this scaler
    ranks agree, so that all skip a step together and all scales stay equal. The
    optimizer unscales parameters of 16 bits in fp32. Like torch, unscale_() rejects
    fp16 gradients. With other optimizers, the class behaves like torch's scaler.
    unscale_() and step() are collective.

    Arguments are the same as in torch, except that `device` None means the machine's
    accelerator, such as "cuda", or "cpu" without one. torch's scaler for "cuda" turns
    itself off without an accelerator.
    """

    def __init__(self, device: str | None = None, *args: Any, **keywords: Any) -> None:
        """Makes the scaler. Local. Raises InvalidArgument unless init_scale is in
        [2^-126, 2^127].
        """
        if device is None:
            found = torch.accelerator.current_accelerator(check_available=True)
            device = "cpu" if found is None else found.type
        super().__init__(device, *args, **keywords)
        if self.is_enabled():
            scale = number_of("init_scale", self._init_scale)
            if not _LEAST <= scale <= _MOST:
                raise InvalidArgument(
                    f"init_scale must be in [2^-126, 2^127], got {scale:g}"
                )

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides gradients by the scale. Collective for a Thinwire optimizer."""
        super().unscale_(optimizer)
        if not self.is_enabled() or not isinstance(optimizer, _Optimizer):
            return
        # The dict contains a tensor for each device with gradients.
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        total = torch.zeros(())
        for part in found.values():
            total += part.cpu()
        optimizer._agree(total)
        device = optimizer._memory.parameters[0].device
        found.clear()
        found[device] = total.to(device)

    def step(
        self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
    ) -> float | None:
        """Runs optimizer.step(), unless a gradient overflowed on any rank. Collective."""
        if not self.is_enabled() or not isinstance(optimizer, _Optimizer):
            return super().step(optimizer, *args, **kwargs)
        state = self._per_optimizer_states[id(optimizer)]
        if optimizer._memory.params.dtype == torch.float16:
            return self._step_in_fp16(optimizer, state, *args, **kwargs)
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        optimizer._found_inf_is_agreed = True
        try:
            return super().step(optimizer, *args, **kwargs)
        finally:
            optimizer._found_inf_is_agreed = False

    def _step_in_fp16(
        self, optimizer: _Optimizer, state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        # Ranks agree on overflows in the optimizer's own exchange, and masters use
        # gradients that are divided in fp32.
        self._check_scale_growth_tracker("step")
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError(
                "step() has already been called since the last update()."
            )
        optimizer.grad_scale = self.get_scale()
        try:
            result: float | None = optimizer.step(*args, **kwargs)
        finally:
            del optimizer.grad_scale
        report = optimizer.report
        assert report is not None
        device = optimizer._memory.parameters[0].device
        overflow = torch.tensor(float(not report.applied), device=device)
        state["found_inf_per_device"] = {device: overflow}
        state["stage"] = OptState.STEPPED
        return result

# SPDX-License-Identifier: Apache-2.0
"""Names of DeepSpeed's optimizers and wrappers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn

from .. import _core

_RESIDUALS = 'in state_dict()["thinwire"], as "worker_error" and "server_error"'
# Attributes of DeepSpeed's optimizers and wrappers, and where to find the values in
# Thinwire.
_ELSEWHERE = {
    **dict.fromkeys(("worker_errors", "server_errors"), _RESIDUALS),
    "lamb_coeffs": "what get_lamb_coeffs() returns",
    "exp_avg_flat": 'of a parameter, state[p]["exp_avg"]',
    "var_freeze_step": "freeze_step",
    "comm_backend_name": "what repr() shows",
    "comm_backend_handle": "what repr() shows",
    **dict.fromkeys(("using_pipeline", "cuda_aware", "eps_mode"), "not used"),
    **dict.fromkeys(
        ("corrected_tensor_sizes", "server_chunk_sizes", "divider", "dummy_exp_avg"),
        "not used, because nothing is padded",
    ),
    **dict.fromkeys(
        ("coeff_beta", "factor_max", "factor_min", "factor_threshold"),
        "a keyword of the constructor",
    ),
    "mpu": "that of initialize(), or of the keyword deepspeed",
    "deepspeed": "the keyword of that name",
    "bit16_groups": "fp16_groups",
    "single_partition_of_fp32_groups": "fp32_groups, which are whole",
    "averaged_gradients": "what engine.full_gradient(p) returns, with ZeRO",
    **dict.fromkeys(("check_overflow", "has_overflow", "overflow_checker"), "overflow"),
    "unscale_and_clip_grads": "part of engine.step()",
    **dict.fromkeys(
        ("cur_iter", "last_overflow_iter"),
        'in state_dict()["thinwire"], as "loss_scale_steps" and "loss_scale_last_overflow"',
    ),
    **dict.fromkeys(
        ("scale_factor", "scale_window", "min_loss_scale"),
        "keys of fp16 in the configuration",
    ),
}


class DeepSpeedNames:
    """Attributes that optimizers and an engine's optimizer share. For other attributes
    of DeepSpeed, an AttributeError says where to find the value.
    """

    @property
    def _stepper(self) -> Any:
        """Native object that counts steps and freezes the variance."""
        raise NotImplementedError

    @property
    def freeze_step(self) -> int | Literal["auto"] | None:
        """Planned last exact step, which is given, derived from total_steps, or taken
        from a loaded state. The value is "auto" until an automatic freeze has happened,
        and None if all steps are exact. For ZeroOneAdam, the value is the last step in
        which the variance may change.
        """
        planned: int | None = self._stepper.freeze_step
        return "auto" if planned == _core.AUTO_FREEZE else planned

    @property
    def adam_freeze_key(self) -> bool:
        """Whether the variance is frozen in the next step. DeepSpeed uses this name."""
        planned = self.freeze_step
        return isinstance(planned, int) and bool(self._stepper.steps >= planned)

    lamb_freeze_key = adam_freeze_key

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            text = f"'{type(self).__name__}' object has no attribute '{name}'"
            if name in _ELSEWHERE:
                text += f": here it is {_ELSEWHERE[name]}"
            raise AttributeError(text, name=name, obj=self)

# SPDX-License-Identifier: Apache-2.0
"""Optimizers with torch's interface that do their own averaging over the ranks.

`params` are tensors, (name, tensor) pairs or groups, of float32, float16 or bfloat16.
Parameters of one 16-bit dtype, which get masters in fp32, may be mixed with float32
parameters. Each parameter becomes part of a flat array of its dtype, and its gradient
becomes part of another array. Files with a parameter or its model keep their size.
Parameters on devices other than the CPU stay there, while the arrays on the host hold
copies: see docs/guide/devices.md.

Groups may set lr, betas, eps and weight_decay. With the low-bit optimizers they may
also set exp_avg_mask, a tensor per parameter, in the parameter's shape or flat. The
mask is 0 for elements whose momentum is always 0. A single flat tensor may cover all
elements of a group. OnebitAdam also accepts non_freeze, while Lamb and OnebitLamb
accept max_coeff and min_coeff. The keys lr, weight_decay and exp_avg_mask may change
later, because every step reads them; all ranks must set the same values. A load does
not replace the script's masks.

A group of experts, which not all ranks hold, names the process group of its ranks as
expert_group. Its parameters begin with the values of the first of these ranks. The sum
of their gradients over these ranks is exact, and is divided by the number of all ranks.
LeanOnebitAdam and "deepspeed" semantics do not support experts. Parameters with the
attribute allreduce=False, and groups with a true `moe`, are also experts. Experts use
deepspeed.mpu.get_expert_data_parallel_group() or, if DeepSpeed is loaded, its process
group. Parameters with a true attribute model_parallel or tensor_model_parallel need a
process group.

help(CLASS) shows all keywords, with the same defaults as the C++ options.

state_dict() has torch's form, with moments in fp32. load_state_dict() keeps them in
fp32, and accepts these states:

* its own, of the same rank and number of ranks, and the run continues bit-identically
* its own of any rank, with AdamW and Lamb, unless they have bits or low_rank
* its own of rank 0 on any rank, except of an outer loop and of LeanOnebitAdam before its
  freeze. Residuals of other ranks then begin at 0, with one warning
* with residuals="drop", its own of any rank. Residuals then begin at 0 on every rank
* a state of torch.optim.Adam or AdamW, for the exact stage
* an empty one, before the first step

thinwire.save and thinwire.load carry states over any number of ranks. The betas, eps,
max_coeff and min_coeff of a state replace the optimizer's values, as in torch. The log
contains a line for each value that differs.
"""

from __future__ import annotations

from typing import Any, Unpack

from torch.optim.optimizer import ParamsT

from . import _options as names
from ._base import _Optimizer as _Optimizer
from ._notices import RunTotals

__all__ = [
    "AdamW",
    "Lamb",
    "LeanOnebitAdam",
    "OnebitAdam",
    "OnebitLamb",
    "RunTotals",
    "ZeroOneAdam",
]


class AdamW(_Optimizer):
    """Exact AdamW (Loshchilov and Hutter, arXiv:1711.05101) on averaged gradients.

    Memory: 8 bytes per parameter, and 4 for masters of parameters of 16 bits.
    """

    _kind = "AdamW"

    def __init__(
        self, params: ParamsT, *args: Any, **keywords: Unpack[names.AdamWKeywords]
    ) -> None:
        super().__init__(params, *args, **keywords)


class Lamb(_Optimizer):
    """Exact LAMB (You et al., arXiv:1904.00962) on averaged gradients.

    The step of a parameter is lr times as long as the parameter, because of a trust
    ratio, which is clamped to [min_coeff, max_coeff]. Memory: as much as AdamW.
    """

    _kind = "Lamb"

    def __init__(
        self, params: ParamsT, *args: Any, **keywords: Unpack[names.LambKeywords]
    ) -> None:
        super().__init__(params, *args, **keywords)


class OnebitAdam(_Optimizer):
    """1-bit Adam (Tang et al., arXiv:2102.02888).

    Steps are exact up to freeze_step. Then ranks average momentum with one bit per
    element.

    freeze_step is a number of steps, "auto" or None. With "auto" the freeze happens
    when the variance has settled within freeze_ratio. The freeze follows
    lr_warmup_steps and lies between min_freeze_step and max_freeze_step, which
    total_steps bounds. With None, total_steps determines freeze_step.

    warmup_bits is the number of bits per element in which exact steps average
    gradients, with error feedback: 4, 8, or 0 for exact averages. None means 8 if
    total_steps determines freeze_step, and 0 if not. With 8 or 4 bits, a step sends a
    quarter or an eighth of the bytes. Residuals of 4 + 4 / ranks bytes per parameter
    are allocated in the first step.

    With compressed_under_next_step the momentum travels while the next forward and
    backward compute. Until the average arrives, each rank updates its parameters with
    its own momentum, so that parameters differ between ranks. synchronize() and `with
    optimizer.evaluation():` make them equal.

    Memory: 8 bytes per parameter, then 8.13 plus 4 / ranks; 4 more with
    compressed_under_next_step.
    """

    _kind = "OnebitAdam"

    def __init__(
        self, params: ParamsT, *args: Any, **keywords: Unpack[names.OnebitAdamKeywords]
    ) -> None:
        super().__init__(params, *args, **keywords)


class LeanOnebitAdam(_Optimizer):
    """1-bit Adam with low-bit state.

    Exact steps compute the same as OnebitAdam, with moments and masters sharded over
    the ranks. With warmup_bits, parameters travel in the same number of bits as
    gradients. After the freeze, denominators are stored as codes of denominator_bits, 8
    or 4, and momentum as signs. Masters of bfloat16 parameters then keep only the 16
    bits that the parameters lack.

    Parameters are float32 or bfloat16. Before the freeze state_dict() differs from rank
    to rank, so use thinwire.save and thinwire.load.

    Memory beside bfloat16 parameters: 12 / ranks bytes per parameter, then 5.15 plus 2
    / ranks. Beside float32 parameters: 8 / ranks, then 3.15 plus 2 / ranks.
    """

    _kind = "LeanOnebitAdam"

    def __init__(
        self,
        params: ParamsT,
        *args: Any,
        **keywords: Unpack[names.LeanOnebitAdamKeywords],
    ) -> None:
        super().__init__(params, *args, **keywords)


class OnebitLamb(_Optimizer):
    """1-bit LAMB (Li et al., arXiv:2104.06069).

    Steps are exact up to freeze_step. Then ranks average momentum with one bit per
    element, and a factor adapts the trust ratios. The factor is within [factor_min,
    factor_max] and changes by at most factor_threshold per step. freeze_step and
    warmup_bits mean the same as for OnebitAdam.

    Memory: 8 bytes per parameter, then 12.26 plus 4 / ranks.
    """

    _kind = "OnebitLamb"

    def __init__(
        self, params: ParamsT, *args: Any, **keywords: Unpack[names.OnebitLambKeywords]
    ) -> None:
        super().__init__(params, *args, **keywords)


class ZeroOneAdam(_Optimizer):
    """0/1 Adam (Lu et al., arXiv:2202.06009).

    Ranks exchange one bit per element. In most steps after var_freeze_step they
    exchange nothing. var_update_scaler is the number of updates of the variance after
    which the interval between them doubles. local_step_scaler is the number of steps
    after which the interval between exchanges doubles, up to local_step_clipper.
    warmup_bits is the number of bits per element in which updates of the variance
    average gradients: 4, 8, or 0 for exact averages. The default is 4 with total_steps,
    and 0 without. Between exchanges parameters differ from rank to rank. synchronize()
    and `with optimizer.evaluation():` make them equal.

    Memory: 16 bytes per parameter, then 20 plus 4 / ranks.
    """

    _kind = "ZeroOneAdam"

    def __init__(
        self, params: ParamsT, *args: Any, **keywords: Unpack[names.ZeroOneAdamKeywords]
    ) -> None:
        super().__init__(params, *args, **keywords)


for _kind in (AdamW, Lamb, LeanOnebitAdam, OnebitAdam, OnebitLamb, ZeroOneAdam):
    # help() and inspect show this signature. Type checkers use the signatures in the
    # classes.
    setattr(_kind, "__signature__", names.signature(_kind._kind))  # noqa: B010
    _parts = [_kind.__doc__ or "", names.COMMON]
    if issubclass(_kind, (LeanOnebitAdam, OnebitAdam, OnebitLamb, ZeroOneAdam)):
        _parts.append(names.LOW_BIT)
    if issubclass(_kind, (AdamW, Lamb)):
        _parts.append(names.AVERAGES)
    if issubclass(_kind, (AdamW, Lamb, OnebitAdam)):
        _parts.append(names.OUTER)
    _kind.__doc__ = "\n\n    ".join(part.rstrip() for part in _parts)
del _kind, _parts

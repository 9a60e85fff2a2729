# SPDX-License-Identifier: Apache-2.0
"""Optimizers in torch's interface that average over the ranks themselves.

`params` are tensors, (name, tensor) pairs or groups. Groups may set lr, betas, eps and
weight_decay; of the low-bit optimizers also exp_avg_mask (a tensor per parameter, 0 where
the momentum is always 0), of OnebitAdam non_freeze, of Lamb and OnebitLamb max_coeff and
min_coeff. A group of experts, which not all ranks hold, names those that hold the same as
expert_group: they begin with the first one's values and are averaged exactly among them,
divided by the number of all ranks; no group of LeanOnebitAdam, nor with "deepspeed"
semantics. Of these lr, weight_decay and exp_avg_mask may change later: they are read in
every step, on all ranks the same ones, and the script's masks hold after a load, too.
of one dtype: float32, float16 or bfloat16; those of 16 bits get masters in fp32. Each
becomes a part of one flat array, its gradient of another; saved by itself or with its
model it takes what it took before.

Arguments of all:
  max_grad_norm        gradients are clipped to this global norm; 0: never
  bias_correction, eps_inside_sqrt
  process_group        a torch.distributed group (None: the world, or a group of one), a
                       transport, or a communicator of run_local_ranks
  threads              of this rank; 0: THINWIRE_NUM_THREADS, else 1
  bucket_elements      that travel together; results do not depend on it
  hierarchy            "auto": ranks of one host exchange among themselves first, where
                       hosts hold several ranks each, equally many; "flat", "by_host"
  ranks_per_host       0: found out
  verify_every         ranks compare checksums every so many steps; 0: never
  broadcast            parameters begin with rank 0's values
  skip_nonfinite       a gradient that is not finite skips the step on all ranks
  telemetry            a file that gets a line per step; docs/guide/telemetry.md
Of OnebitAdam, LeanOnebitAdam, OnebitLamb and ZeroOneAdam:
  denom_floor, residual_dtype (torch.float32 or bfloat16),
  lagged_clipping, total_steps; of DeepSpeed's scripts comm_backend_name ("mpi" and "gloo"
  choose the transport), cuda_aware and deepspeed
Each default is that of the C++ options; help(CLASS) shows them.

state_dict() has torch's form; moments are in fp32 and stay so. load_state_dict() takes
  - its own, of the same rank and number of ranks: the run goes on bit-equal; of AdamW
    and Lamb of any rank;
  - that of torch.optim.Adam or AdamW, for the exact stage;
  - an empty one, before the first step.
thinwire.save and thinwire.load carry states over any number of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.optim.optimizer import ParamsT

from .. import _core
from . import _options as names
from ._base import _Optimizer as _Optimizer
from ._run import RunTotals

if TYPE_CHECKING:
    from typing import Unpack

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
    """Exact AdamW (Loshchilov and Hutter, arXiv:1711.05101), averaging gradients.

    Memory: 8 bytes per parameter, and 4 for masters of parameters of 16 bits.
    """

    _options, _group = _core.AdamOptions, _core.AdamGroup

    if TYPE_CHECKING:

        def __init__(
            self,
            params: ParamsT,
            lr: float | torch.Tensor = ...,
            betas: tuple[float, float] = ...,
            eps: float = ...,
            weight_decay: float = ...,
            **keywords: Unpack[names.CommonKeywords],
        ) -> None: ...


class Lamb(_Optimizer):
    """Exact LAMB (You et al., arXiv:1904.00962), averaging gradients.

    A parameter's step is as long as lr times its norm, by a ratio clamped to
    [min_coeff, max_coeff]. Memory: as AdamW.
    """

    _options, _group = _core.LambOptions, _core.LambGroup
    _keywords = names.LambKeywords

    if TYPE_CHECKING:

        def __init__(
            self,
            params: ParamsT,
            lr: float | torch.Tensor = ...,
            betas: tuple[float, float] = ...,
            eps: float = ...,
            weight_decay: float = ...,
            **keywords: Unpack[names.LambKeywords],
        ) -> None: ...


class OnebitAdam(_Optimizer):
    """1-bit Adam (Tang et al., arXiv:2102.02888): exact up to freeze_step, then ranks
    average momentum with one bit per element.

    freeze_step is a number of steps, or "auto": when the variance has settled within
    freeze_ratio, after lr_warmup_steps, and within min_freeze_step and max_freeze_step,
    which total_steps bounds; None: it follows from total_steps.
    Memory: 8 bytes per parameter, then 8.13 and 4 / ranks.
    """

    _options, _group = _core.OnebitAdamOptions, _core.OnebitAdamGroup
    _keywords = names.OnebitAdamKeywords

    if TYPE_CHECKING:

        def __init__(
            self,
            params: ParamsT,
            lr: float | torch.Tensor = ...,
            betas: tuple[float, float] = ...,
            eps: float = ...,
            weight_decay: float = ...,
            **keywords: Unpack[names.OnebitAdamKeywords],
        ) -> None: ...


class LeanOnebitAdam(_Optimizer):
    """1-bit Adam in few bytes: OnebitAdam whose exact steps shard moments and masters over
    the ranks, and which then keeps denominators as codes of denominator_bits, 8 or 4, of
    masters beside parameters of bfloat16 what those lack, and momentum as signs.

    Parameters are float32 or bfloat16. Before the freeze ranks' state_dict() differ: use
    thinwire.save and thinwire.load. Memory beside the parameters, bfloat16: 12 / ranks
    bytes per parameter, then 5.15 and 2 / ranks; float32: 8 / ranks, then 3.15 and
    2 / ranks.
    """

    _options, _group = _core.LeanOnebitAdamOptions, _core.MaskedGroup
    _keywords = names.LeanOnebitAdamKeywords

    if TYPE_CHECKING:

        def __init__(
            self,
            params: ParamsT,
            lr: float | torch.Tensor = ...,
            betas: tuple[float, float] = ...,
            eps: float = ...,
            weight_decay: float = ...,
            **keywords: Unpack[names.LeanOnebitAdamKeywords],
        ) -> None: ...


class OnebitLamb(_Optimizer):
    """1-bit LAMB (Li et al., arXiv:2104.06069): exact up to freeze_step, then ranks
    average momentum with one bit per element, and trust ratios follow a factor within
    [factor_min, factor_max] that changes by factor_threshold a step at most.

    freeze_step: as OnebitAdam's. Memory: 8 bytes per parameter, then 12.25 and 4 / ranks.
    """

    _options, _group = _core.OnebitLambOptions, _core.OnebitLambGroup
    _keywords = names.OnebitLambKeywords

    if TYPE_CHECKING:

        def __init__(
            self,
            params: ParamsT,
            lr: float | torch.Tensor = ...,
            betas: tuple[float, float] = ...,
            eps: float = ...,
            weight_decay: float = ...,
            **keywords: Unpack[names.OnebitLambKeywords],
        ) -> None: ...


class ZeroOneAdam(_Optimizer):
    """0/1 Adam (Lu et al., arXiv:2202.06009): one bit per element, and in most steps
    after var_freeze_step nothing.

    var_update_scaler, local_step_scaler and local_step_clipper: how intervals between
    updates of the variance and between exchanges grow. Between exchanges parameters
    differ from rank to rank: `with optimizer.evaluation():` and synchronize() make them
    equal. Memory: 16 bytes per parameter, then 20, and 4 / ranks.
    """

    _options, _group = _core.ZeroOneAdamOptions, _core.MaskedGroup
    _keywords = names.ZeroOneAdamKeywords

    if TYPE_CHECKING:

        def __init__(
            self,
            params: ParamsT,
            lr: float | torch.Tensor = ...,
            betas: tuple[float, float] = ...,
            eps: float = ...,
            weight_decay: float = ...,
            **keywords: Unpack[names.ZeroOneAdamKeywords],
        ) -> None: ...


for _kind in (AdamW, Lamb, LeanOnebitAdam, OnebitAdam, OnebitLamb, ZeroOneAdam):
    # What help() and inspect show; type checkers have the classes' own.
    setattr(_kind, "__signature__", names.signature(_kind._options(), _kind._keywords))  # noqa: B010
    _parts = [_kind.__doc__ or "", names.COMMON]
    if issubclass(_kind, (LeanOnebitAdam, OnebitAdam, OnebitLamb, ZeroOneAdam)):
        _parts.append(names.LOW_BIT)
    _kind.__doc__ = "\n\n    ".join(part.rstrip() for part in _parts)
del _kind, _parts

# SPDX-License-Identifier: Apache-2.0
"""Keyword arguments of the optimizers: their types, their documentation, and values
that only Python can read. C++ defines the ranges and defaults (src/config/fields.h),
and checks values.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypedDict

import torch

from .. import _core
from ..config import require_finite
from ..errors import Error, InvalidArgument
from ._telemetry import Given

DTYPES = {
    torch.float32: _core.DType.float32,
    torch.float16: _core.DType.float16,
    torch.bfloat16: _core.DType.bfloat16,
}

# Python's names for the terms in C++'s errors.
_IN_PYTHON = {
    "learning_rate": "lr",
    "epsilon": "eps",
    "epsilon_inside_sqrt": "eps_inside_sqrt",
    "beta1": "betas[0]",
    "beta2": "betas[1]",
    "gradient_clipping": "max_grad_norm",
    "num_threads": "threads",
    "check_grad_overflow": "skip_nonfinite",
    "backend": "comm_backend_name",
    "kAutoFreeze (-1)": "'auto'",
}
_CPP_NAME = re.compile(
    rf"(?<![\w.'])({'|'.join(map(re.escape, _IN_PYTHON))})(?![\w.'])"
)
# Switches of torch that must be off, because Thinwire has no such feature.
REFUSED = {
    "amsgrad": "a running maximum of the variance is not supported",
    "maximize": "negate the loss instead",
    "foreach": "all parameters are updated in one pass anyway",
    "fused": "all parameters are updated in one pass anyway",
    "capturable": "a step communicates and cannot be captured in a graph",
    "differentiable": "autograd does not see a step",
}
# Keywords of DeepSpeed's optimizers that are accepted, with a line in the log.
OF_DEEPSPEED = ("comm_backend_name", "cuda_aware", "deepspeed")
# Keywords that C++ does not know.
_OF_PYTHON = ("process_group", "broadcast", "telemetry", "cuda_aware", "deepspeed")
GROUP_KEYS = ("lr", "betas", "eps", "weight_decay")


COMMON = """Common keywords:
    max_grad_norm: global L2 norm to which gradients are clipped; 0 for no clipping.
      Compressed steps clip by an estimate of the averaged gradient's norm, which exact
      steps calibrate.
    bias_correction: whether moments are corrected as in Adam's paper.
    eps_inside_sqrt: whether the denominator is sqrt(v + eps), not sqrt(v) + eps.
    process_group: ranks that train together: a ProcessGroup, a transport, or the
      communicator of run_local_ranks(). None is the world, or this process alone.
    threads: threads of this rank for loops over memory; 0: THINWIRE_NUM_THREADS, else 1.
    bucket_elements: elements that are sent together; results do not depend on it.
    hierarchy: "auto", "flat" or "by_host". With "auto", ranks of one host reduce locally
      first if all hosts hold the same number of ranks, and more than one.
    ranks_per_host: ranks per host; 0 detects it.
    verify_every: steps between comparisons of parameters over all ranks; 0 for none.
    broadcast: whether construction sends rank 0's parameters to all ranks.
    skip_nonfinite: whether a non-finite gradient on one rank skips the step on all.
    telemetry: a path, or {"path": ..., "every": steps, "every_rank": bool}; None for no
      telemetry. Rank 0 writes a line of JSON per step, or with every_rank each rank writes
      PATH.rankN. See docs/guide/telemetry.md."""

LOW_BIT = """Keywords of compression:
    total_steps: steps of the run, which determine other keywords that are not given.
      freeze_step is a fifth of it, at most 1000. In ZeroOneAdam var_freeze_step is half of
      it, var_update_scaler 8, warmup_bits 4, local_step_scaler 12 %, and
      local_step_clipper 4, or 16 from 10,000 steps on.
      Without total_steps, freeze_step and var_freeze_step are 100000.
      `optimizer.freeze_step` has the effective value.
    denom_floor: least denominator after the freeze, in ZeroOneAdam always, as a fraction
      of its block's RMS; 0 for no floor.
    residual_dtype: torch.float32 or torch.bfloat16.
    lagged_clipping: whether compressed steps clip by the gradient norm of earlier steps,
      unless the norm has doubled.
    comm_backend_name: a keyword of DeepSpeed. Unless process_group or THINWIRE_COMM chooses
      a transport, "mpi" chooses mpi4py and "gloo" torch.distributed. "nccl" and "hccl" have
      no effect.
    deepspeed: DeepSpeed's engine, or any object. Unless process_group is given, the ranks
      of deepspeed.mpu.get_data_parallel_group() average.
    cuda_aware: a keyword of DeepSpeed, which has no effect."""

AVERAGES = """Keywords of averages:
    bits: bits per element of averaged gradients, with error feedback: 4, 8, or 0 for an
      exact average, the default.
    low_rank: largest number of columns of a factor; 0 for no factors, the default. Gradients
      are averaged as products of two factors, which travel in 8 bits (PowerSGD, Vogels et
      al., arXiv:1905.13727). Parameters that factors would not make smaller travel in 8
      bits. Excludes bits.
    first_steps: number of first steps with low_rank that average in first_bits bits, 4 or
      8, instead. None is a twentieth of total_steps, at least 20.
    total_steps: steps of the run, which only first_steps needs.
    Both averages take 8 + 8 / ranks bytes per parameter more. low_rank takes another 4, and
    16-bit gradients take another 4. Experts are averaged exactly."""

OUTER = """Keyword of an outer loop:
    outer: None, or a dict for training in which only some steps exchange (DiLoCo, Douillard
      et al., arXiv:2311.08105). Ranks take sync_every local steps of this optimizer, which
      send nothing. A sync then averages the changes of these steps, in bits_up and
      bits_down bits per element: 4, 8, or 0 for an exact average. An outer optimizer applies
      the average: SGD with learning_rate, 1 by default, and Nesterov momentum, 0 by
      default. In the first warmup_steps steps, ranks average gradients instead, in
      warmup_bits bits, 8 by default; in OnebitAdam these are the steps up to freeze_step.
      With sync_growth, the interval is 1 after the warm-up and doubles every sync_growth
      steps, up to sync_every. Parameters differ between ranks until the next sync, which
      synchronize() and evaluation() also make. An outer loop takes 8 + 8 / ranks bytes per
      parameter more. See docs/guide/outer-loop.md."""


class CommonKeywords(TypedDict, total=False):
    """Keywords of all optimizers. The first four may be given by position, after params."""

    lr: float | torch.Tensor
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    max_grad_norm: float
    bias_correction: bool
    eps_inside_sqrt: bool
    process_group: Any
    threads: int
    bucket_elements: int | None
    hierarchy: Literal["auto", "flat", "by_host"]
    ranks_per_host: int
    verify_every: int
    broadcast: bool
    skip_nonfinite: bool
    telemetry: Given | None
    amsgrad: bool | None
    maximize: bool | None
    foreach: bool | None
    fused: bool | None
    capturable: bool | None
    differentiable: bool | None


class OuterOptions(TypedDict, total=False):
    """An outer loop: keys of the keyword `outer`."""

    sync_every: int
    sync_growth: int
    learning_rate: float
    momentum: float
    bits_up: Literal[0, 4, 8]
    bits_down: Literal[0, 4, 8]
    warmup_steps: int
    warmup_bits: Literal[0, 4, 8]


class ExactKeywords(CommonKeywords, total=False):
    """Keywords of the exact optimizers."""

    bits: Literal[0, 4, 8]
    low_rank: int
    first_steps: int | None
    first_bits: Literal[4, 8]
    total_steps: int | None
    outer: OuterOptions | None


class AdamWKeywords(ExactKeywords, total=False):
    """Keywords of AdamW."""


class LambKeywords(ExactKeywords, total=False):
    """Keywords of Lamb."""

    max_coeff: float
    min_coeff: float


class LowBitKeywords(CommonKeywords, total=False):
    """Keywords of the low-bit optimizers."""

    denom_floor: float
    residual_dtype: torch.dtype
    lagged_clipping: bool
    comm_backend_name: Literal["nccl", "hccl", "mpi", "gloo"] | None
    cuda_aware: bool | None
    deepspeed: Any
    total_steps: int | None


class FreezeKeywords(LowBitKeywords, total=False):
    """Keywords of the freeze of the variance."""

    freeze_step: int | Literal["auto"] | None
    lr_warmup_steps: int | None
    min_freeze_step: int
    max_freeze_step: int | None
    freeze_ratio: float
    warmup_bits: Literal[0, 4, 8] | None


class OnebitAdamKeywords(FreezeKeywords, total=False):
    """Keywords of OnebitAdam."""

    compressed_under_next_step: bool
    outer: OuterOptions | None


class LeanOnebitAdamKeywords(FreezeKeywords, total=False):
    """Keywords of LeanOnebitAdam."""

    denominator_bits: Literal[4, 8]


class OnebitLambKeywords(FreezeKeywords, total=False):
    """Keywords of OnebitLamb."""

    max_coeff: float
    min_coeff: float
    coeff_beta: float
    factor_max: float
    factor_min: float
    factor_threshold: float


class ZeroOneAdamKeywords(LowBitKeywords, total=False):
    """Keywords of ZeroOneAdam."""

    var_freeze_step: int | None
    var_update_scaler: int | None
    local_step_scaler: int | None
    local_step_clipper: int | None
    warmup_bits: Literal[0, 4, 8] | None


# Types of the keywords by the name of the optimizer's class.
KINDS: dict[str, Any] = {
    "AdamW": AdamWKeywords,
    "Lamb": LambKeywords,
    "OnebitAdam": OnebitAdamKeywords,
    "OnebitLamb": OnebitLambKeywords,
    "LeanOnebitAdam": LeanOnebitAdamKeywords,
    "ZeroOneAdam": ZeroOneAdamKeywords,
}


def names_of(kind: str) -> list[str]:
    """Returns the keywords of a kind of optimizer, without keys of groups and torch's
    switches.
    """
    left_out = (*GROUP_KEYS, *REFUSED)
    return [name for name in KINDS[kind].__annotations__ if name not in left_out]


@functools.cache
def defaults(kind: str) -> dict[str, Any]:
    """Returns the defaults of all arguments of a kind of optimizer, except params."""
    config = _core.Config()
    config.set_optimizer(kind)
    known = config.keywords() | {"broadcast": True, "bucket_elements": None}
    values = {name: known.get(name) for name in (*GROUP_KEYS, *names_of(kind))}
    if "residual_dtype" in values:
        lean = kind == "LeanOnebitAdam"
        values["residual_dtype"] = torch.bfloat16 if lean else torch.float32
    return values


def signature(kind: str) -> inspect.Signature:
    both = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("params", both)]
    for name, value in defaults(kind).items():
        how = both if name in GROUP_KEYS else inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, how, default=value))
    return inspect.Signature(parameters)


def by_name(kind: str, args: Sequence[Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Returns the keywords, including arguments that were given by position after
    params. An engine of DeepSpeed, or None alone, becomes `deepspeed`, because
    DeepSpeed's optimizers take that argument at this position.

    Raises TypeError like Python.
    """
    names: tuple[str, ...] = GROUP_KEYS
    if args and (hasattr(args[0], "mpu") or (args[0] is None and len(args) == 1)):
        names = ("deepspeed",)
    if len(args) > len(names):
        raise TypeError(
            f"{kind}() takes params and by position at most {', '.join(names)}; "
            f"{len(args) + 1} arguments were given, name the others"
        )
    given = dict(zip(names, args, strict=False))
    for name in given.keys() & keywords.keys():
        raise TypeError(f"{kind}() got multiple values for argument '{name}'")
    if names == ("deepspeed",) and args[0] is None:
        return keywords  # as without the argument
    return {**keywords, **given}


def refuse_switches(given: Mapping[str, Any]) -> None:
    """Raises InvalidArgument for a switch of torch that Thinwire does not support."""
    for name, text in REFUSED.items():
        if given.get(name):
            raise InvalidArgument(f"{name}: must be False or None, {text}")


@contextmanager
def names_of_python() -> Iterator[None]:
    """Renames options in the body's errors to keywords and keys of groups."""
    try:
        yield
    except Error as error:
        text = _CPP_NAME.sub(lambda found: _IN_PYTHON[found[1]], str(error))
        raise type(error)(text) from None


def set_optimizer(config: _core.Config, kind: str, keywords: Mapping[str, Any]) -> None:
    """Writes the keywords to C++'s settings, which refuse invalid values. None keeps
    the default. Raises TypeError and InvalidArgument naming the keyword.
    """
    broadcast, dtype = keywords.get("broadcast"), keywords.get("residual_dtype")
    if not isinstance(broadcast, bool | None):
        raise TypeError(
            f"broadcast: must be bool, got {broadcast!r} of {type(broadcast).__name__}"
        )
    if dtype is not None and (
        not isinstance(dtype, torch.dtype) or dtype not in _RESIDUALS
    ):
        raise InvalidArgument(
            f"residual_dtype: must be torch.float32 or torch.bfloat16, got {dtype}"
        )
    of_python = [name for name in names_of(kind) if name in _OF_PYTHON]
    passed = {
        name: value
        for name, value in keywords.items()
        if name not in of_python and name not in REFUSED
    }
    config.set_optimizer(kind, to_text(passed), of_python)


_RESIDUALS = {torch.float32: "fp32", torch.bfloat16: "bf16"}


def to_text(keywords: Mapping[str, Any]) -> str:
    """Returns keywords, or a group's options, as text for C++. Raises InvalidArgument
    for a number that is not finite.
    """
    own = plain(keywords)
    require_finite(own, "")
    return json.dumps(own, default=repr)


def plain(value: Any) -> Any:
    """Returns a value in Python's own types. Values of torch and numpy are
    converted.
    """
    if isinstance(value, torch.dtype):
        return _RESIDUALS.get(value)
    if isinstance(value, Mapping):
        return {name: plain(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(element) for element in value]
    with suppress(AttributeError, ValueError, RuntimeError):
        return value.item()
    return value


def _member(kind: Any, name: str, value: Any) -> Any:
    members = {member.name: member for member in kind}
    if not isinstance(value, str) or value not in members:
        known = " or ".join(f"'{key}'" for key in members)
        raise InvalidArgument(f"{name}: must be {known}, got {value!r}")
    return members[value]


def number_of(name: str, value: Any) -> float:
    """Returns a float. Raises TypeError for text and True, which float() accepts."""
    if not isinstance(value, (bool, str, bytes)):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            pass
        except OverflowError:
            raise InvalidArgument(f"{name} must be finite, got more") from None
    raise TypeError(f"{name}: must be a number, got {value!r}")


def rate_of(name: str, value: Any) -> float:
    """Returns a rate or decay like number_of(). Raises InvalidArgument if it is out of
    range.
    """
    rate = number_of(name, value)
    if not 0 <= rate <= torch.finfo(torch.float32).max:
        where = " in fp32" if 0 < rate < math.inf else ""
        raise InvalidArgument(f"{name} must be finite and >= 0{where}, got {rate:g}")
    return rate

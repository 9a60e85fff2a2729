# SPDX-License-Identifier: Apache-2.0
"""Keyword arguments of the optimizers, in torch's names, and the C++ options they set.

Every default is read from the C++ structs, so only they have it.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, Protocol, TypedDict

import torch

from .. import _core
from ..errors import Error, InvalidArgument
from ._telemetry import Given

Options = (
    _core.AdamOptions
    | _core.LambOptions
    | _core.OnebitAdamOptions
    | _core.OnebitLambOptions
    | _core.ZeroOneAdamOptions
    | _core.LeanOnebitAdamOptions
)

DTYPES = {
    torch.float32: _core.DType.float32,
    torch.float16: _core.DType.float16,
    torch.bfloat16: _core.DType.bfloat16,
}

# Python's name of an option and the field's, if they differ.
FIELDS = {
    "lr": "learning_rate",
    "eps": "epsilon",
    "eps_inside_sqrt": "epsilon_inside_sqrt",
}
# Options of the run, not of the optimizer, and their places in _core.Config.
OF_CONFIG = {
    **{name: f"average.{name}" for name in ("bits", "low_rank", "first_steps")},
    "first_bits": "average.first_bits",
    "max_grad_norm": "gradient_clipping",
    "lagged_clipping": "lagged_clipping",
    "compressed_under_next_step": "comm.compressed_under_next_step",
    "threads": "comm.num_threads",
    "bucket_elements": "comm.bucket_elements",
    "hierarchy": "comm.hierarchy",
    "ranks_per_host": "comm.ranks_per_host",
    "verify_every": "comm.verify_every",
    "skip_nonfinite": "precision.check_grad_overflow",
    "comm_backend_name": "comm.backend",
}
# Python's names for the terms in C++'s errors.
_IN_PYTHON = {
    **{field.rpartition(".")[2]: name for name, field in (FIELDS | OF_CONFIG).items()},
    "beta1": "betas[0]",
    "beta2": "betas[1]",
    "kAutoFreeze (-1)": "'auto'",
}
_CPP_NAME = re.compile(
    rf"(?<![\w.'])({'|'.join(map(re.escape, _IN_PYTHON))})(?![\w.'])"
)
# Switches of torch that may only be off, which is what Thinwire does.
REFUSED = {
    "amsgrad": "a running maximum of the variance is not supported",
    "maximize": "negate the loss instead",
    "foreach": "all parameters are updated in one pass anyway",
    "fused": "all parameters are updated in one pass anyway",
    "capturable": "a step communicates and cannot be captured in a graph",
    "differentiable": "autograd does not see a step",
}
# Keywords of earlier versions, and their replacements.
GONE = {
    "variance_refresh": "leave it out; for a long run choose a later freeze_step",
    "calibrated_clipping": "leave it out; compressed steps are clipped by an estimate "
    "that exact steps calibrate",
    "scale": "leave it out; a block's scale is the RMS of its elements",
    "exchanged": "leave it out; before the freeze the momentum is exchanged",
    "semantics": "set thinwire.semantics in a configuration of thinwire.initialize",
}
# Keywords of DeepSpeed's optimizers that are accepted with one line of the log.
OF_DEEPSPEED = ("comm_backend_name", "cuda_aware", "deepspeed")
BACKENDS = ("nccl", "hccl", "mpi", "gloo")
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
    lagged_clipping: whether compressed steps clip by the gradients' norm of the steps
      before, unless it has doubled.
    comm_backend_name: DeepSpeed's. Unless process_group or THINWIRE_COMM chooses a
      transport, "mpi" chooses mpi4py and "gloo" torch.distributed. "nccl" and "hccl" change
      nothing here.
    deepspeed: DeepSpeed's engine, or any object. Unless process_group is given, the ranks
      of deepspeed.mpu.get_data_parallel_group() average.
    cuda_aware: DeepSpeed's, without effect."""

AVERAGES = """Keywords of averages:
    bits: bits per element in which gradients are averaged, with error feedback: 4, 8, or 0
      for exactly, the default.
    low_rank: gradients are averaged as products of factors with at most so many columns,
      which travel in 8 bits (PowerSGD, Vogels et al., arXiv:1905.13727); 0 for not so.
      Parameters that factors would not make smaller travel in 8 bits. Excludes bits.
    first_steps: with low_rank, so many first steps average in first_bits bits instead, 4 or
      8. None is a twentieth of total_steps, at least 20.
    total_steps: steps of the run, which only first_steps needs.
    Both take 8 + 8 / ranks bytes per parameter more, low_rank 4 more than that, and with
    gradients of 16 bits 4 more. Experts are averaged exactly."""

OUTER = """Keyword of an outer loop:
    outer: None, or a dict for training with an exchange in few steps (DiLoCo, Douillard et
      al., arXiv:2311.08105). Ranks take sync_every local steps of this optimizer, which
      send nothing. Then they average what these steps have changed (a sync), in bits_up
      and bits_down bits per element, 4, 8, or 0 for exactly. An outer optimizer applies
      the average: SGD with learning_rate, 1 by default, and Nesterov momentum, 0 by
      default. In the first warmup_steps steps ranks average gradients instead, in
      warmup_bits bits, 8 by default; in OnebitAdam these are the steps up to freeze_step.
      With sync_growth the interval is 1 after the warm-up and doubles after every so many
      steps, up to sync_every. Between syncs parameters differ from rank to rank;
      synchronize() and evaluation() make a sync. An outer loop takes 8 + 8 / ranks bytes
      per parameter more. See docs/guide/outer-loop.md."""


class Handle(Protocol):
    """DeepSpeed's engine."""

    mpu: Any


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


def names_of(keywords: Any) -> list[str]:
    """Returns the keywords of a TypedDict, without those of groups and torch's switches."""
    left_out = (*GROUP_KEYS, *REFUSED)
    return [name for name in keywords.__annotations__ if name not in left_out]


def default(options: Options, name: str) -> Any:
    if name in (
        *("process_group", "bucket_elements", "telemetry", "outer"),
        *OF_DEEPSPEED,
    ):
        return None
    if name == "broadcast":
        return True
    if name == "betas":
        return (_get(options, "beta1"), _get(options, "beta2"))
    if (place := _place_in_config(options, name)) is not None:
        value = _get(_core.Config(), place)
    else:
        value = _get(options, FIELDS.get(name, name))
    if isinstance(value, _core.DType):
        return next(t for t, native in DTYPES.items() if native == value)
    if name == "hierarchy":
        return value.name
    return value


def _place_in_config(options: Options, name: str) -> str | None:
    """Returns the place of a keyword in _core.Config; None: it is one of `options`."""
    if name == "total_steps" and not hasattr(options, name):
        return "average.total_steps"
    return OF_CONFIG.get(name)


def signature(options: Options, keywords: Any) -> inspect.Signature:
    both, only = (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    first = [inspect.Parameter("params", both)]
    first += [
        inspect.Parameter(name, both, default=default(options, name))
        for name in GROUP_KEYS
    ]
    last = [
        inspect.Parameter(name, only, default=default(options, name))
        for name in names_of(keywords)
    ]
    return inspect.Signature(first + last)


def by_name(kind: str, args: Sequence[Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Returns the keywords with those that were given by position, after params. An
    engine of DeepSpeed, or None alone, is `deepspeed`, which DeepSpeed has there.

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
        return keywords  # as without it
    return {**keywords, **given}


def check_keywords(kind: str, given: Mapping[str, Any], known: list[str]) -> None:
    """Checks the names. Raises TypeError for an unknown keyword, with the nearest name
    or what to write instead. Raises InvalidArgument for a switch of torch's that
    Thinwire cannot follow.
    """
    for name, value in given.items():
        if name in REFUSED:
            if value:
                raise InvalidArgument(f"{name}: must be False or None, {REFUSED[name]}")
        elif name in GONE:
            raise TypeError(f"{kind}() has no keyword '{name}' any more: {GONE[name]}")
        elif name not in known:
            near = difflib.get_close_matches(name, [*known, *GROUP_KEYS], 1, 0.5)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise TypeError(
                f"{kind}() got an unexpected keyword argument '{name}'{hint}"
            )


@contextmanager
def names_of_python() -> Iterator[None]:
    """Renames options in the body's errors, to keywords and keys of groups."""
    try:
        yield
    except Error as error:
        text = _CPP_NAME.sub(lambda found: _IN_PYTHON[found[1]], str(error))
        raise type(error)(text) from None


def set_keyword(config: _core.Config, options: Options, name: str, value: Any) -> None:
    """Writes one keyword to the C++ options. None keeps the default."""
    if value is None or name in REFUSED:
        return
    if name in ("process_group", "telemetry", "cuda_aware", "deepspeed"):
        return
    if name == "outer":
        _set_outer(config, value)
        return
    if name == "broadcast":
        if not isinstance(value, bool):
            raise TypeError(
                f"broadcast: must be bool, got {value!r} of {type(value).__name__}"
            )
        return
    if (place := _place_in_config(options, name)) is not None:
        if name == "hierarchy":
            value = _member(_core.Hierarchy, name, value)
        elif name == "comm_backend_name":
            if value not in BACKENDS:
                known = ", ".join(f"'{key}'" for key in BACKENDS)
                raise InvalidArgument(f"{name}: must be one of {known}, got {value!r}")
            value = _core.CommBackend[value]
        set_field(config, place, value, name)
        return
    if name == "residual_dtype":
        if not isinstance(value, torch.dtype) or value not in DTYPES:
            raise InvalidArgument(
                f"residual_dtype: must be torch.float32 or torch.bfloat16, got {value}"
            )
        value = DTYPES[value]
    elif name == "freeze_step":
        value = _freeze_step(value)
    set_field(options, FIELDS.get(name, name), value, name)


def _set_outer(config: _core.Config, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"outer: must be a dict or None, got {given!r:.60}")
    known = list(OuterOptions.__annotations__)
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1, 0.5)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise TypeError(f"outer: got an unexpected key '{name}'{hint}")
        set_field(config, f"outer.{name}", value, f"outer['{name}']")
    if "sync_every" not in given:
        raise InvalidArgument("outer must have the key 'sync_every', >= 1")
    if config.outer.sync_every < 1:
        raise InvalidArgument(
            f"outer['sync_every'] must be >= 1, got {config.outer.sync_every}"
        )


def _freeze_step(value: Any) -> int:
    if value == "auto":
        return int(_core.AUTO_FREEZE)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"freeze_step: must be int or 'auto', got {value!r} of {type(value).__name__}"
        )
    if value == _core.AUTO_FREEZE:
        raise InvalidArgument(f"freeze_step must be >= 1 or 'auto', got {value}")
    return value


def _member(kind: Any, name: str, value: Any) -> Any:
    members = {member.name: member for member in kind}
    if not isinstance(value, str) or value not in members:
        known = " or ".join(f"'{key}'" for key in members)
        raise InvalidArgument(f"{name}: must be {known}, got {value!r}")
    return members[value]


def _get(holder: Any, path: str) -> Any:
    for part in path.split("."):
        holder = getattr(holder, part)
    return holder


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
    """Returns a learning rate or decay. Raises also InvalidArgument out of range."""
    rate = number_of(name, value)
    if not 0 <= rate <= torch.finfo(torch.float32).max:
        where = " in fp32" if 0 < rate < math.inf else ""
        raise InvalidArgument(f"{name} must be finite and >= 0{where}, got {rate:g}")
    return rate


# Optional integers that may be 0.
_INTEGERS = {
    **{name: "an integer >= 0" for name in ("lr_warmup_steps", "first_steps")},
    "warmup_bits": "0, 4, 8",
}


def _bits_of(holder: Any, field: str) -> int:
    """Returns the exponent of the power of two below which an integer field must be."""
    before = getattr(holder, field)
    for bits in (64, 63, 32):
        with suppress(TypeError, RuntimeError, OverflowError):
            setattr(holder, field, 2**bits - 1)
            setattr(holder, field, before)
            return bits
    return 31


def set_field(holder: Any, path: str, value: Any, name: str) -> None:
    """Writes into a C++ struct, or raises naming the keyword."""
    *outer, field = path.split(".")
    for part in outer:
        holder = getattr(holder, part)
    now, cause = getattr(holder, field), None
    if isinstance(now, bool) or not isinstance(value, bool):
        try:
            setattr(holder, field, value)
            return
        except (TypeError, RuntimeError, OverflowError) as error:
            cause = error  # its text names C++ types
    if (now is None or type(now) is int) and type(value) is int:
        wanted = ">= 0" if value < 0 else f"below 2^{_bits_of(holder, field)}"
        raise InvalidArgument(f"{name} must be {wanted}, got {value}") from cause
    whole = _INTEGERS.get(field, "an integer >= 1")
    wanted = f"{whole} or None" if now is None else type(now).__name__
    raise TypeError(
        f"{name}: must be {wanted}, got {value!r} of {type(value).__name__}"
    ) from cause

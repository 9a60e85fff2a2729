# SPDX-License-Identifier: Apache-2.0
"""Low-bit and low-rank averages of DistributedDataParallel, with error feedback."""

# torch compares the hook's annotations with classes, so they must not be strings.
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from .. import _averages, _core
from .._agreement import agreed
from .._log import logger
from ..comm import communicator_for
from ..comm.calls import in_call
from ..comm.groups import require_group
from ..comm.lifetime import reason_of
from ..comm.modules import register_hook
from ..errors import FailedPrecondition, InvalidArgument
from ..optim._lifetime import closing
from ..report import HookReport
from . import _state
from ._average import Average, Averaged
from ._device_average import DeviceAverage
from ._factors import PARTS, Factors, Kept, matrices_of
from ._host_average import HostAverage
from ._options import FIRST_BITS, FIRST_STEPS, Options
from ._parameters import (
    averaged,
    description,
    refuse_on_all_ranks,
    strides_in_bucket,
)
from ._path import device_groups
from ._scale import Jumps, ScaledHook
from ._thread import Exchanges


@dataclass
class _Pass:
    number: int
    is_exact: bool
    scale: float
    averages: list[Averaged] = field(default_factory=list)
    bytes_sent: int = 0
    wait_seconds: float = 0
    before: tuple[int, float] = (0, 0)  # both from all previous backwards

    def count(self, average: Average) -> None:
        sent, waited = self.before
        self.bytes_sent = average.bytes_sent - sent
        self.wait_seconds = average.wait_seconds - waited

    @property
    def squares(self) -> float:
        """Returns the squared norm of the averages. Waits for the device."""
        return sum((float(a.norm) / self.scale) ** 2 for a in self.averages)

    @property
    def is_finite(self) -> bool:
        """Waits for a device."""
        return all(bool(average.is_finite) for average in self.averages)


@dataclass
class _Part:
    of: _Pass
    index: int
    is_last: bool
    units: list[int]
    bucket: torch.Tensor
    values: torch.Tensor  # the bucket, or a copy of it in the order of indices
    views: list[torch.Tensor]  # the bucket's gradients, if `values` is a copy
    done: Future[torch.Tensor]
    taken: Any  # by the average

    def end(self, average: Averaged) -> None:
        self.of.averages.append(average)
        begin = 0
        for view in self.views:
            end = begin + view.numel()
            view.copy_(self.values[begin:end].view(view.shape))
            begin = end


class _Registration:
    """The hook in the form that DDP calls. A copied or unpickled DDP has no hook."""

    def __init__(self, hook: "Hook | None" = None) -> None:
        self.hook = hook

    def __reduce__(self) -> Any:
        return _Registration, ()


def _take(registration: _Registration, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    assert registration.hook is not None  # DDP registers no hook in its copies
    return registration.hook._take(bucket)


class Hook(ScaledHook):
    """Averages the gradients of a DistributedDataParallel in 8 or 4 bits, or as factors
    of low rank. Made by ddp_hook().

    A residual is the rounding error of an average, and is added to the next gradient.
    Residuals belong to parameters, so DDP may rebuild its buckets. Residuals are stored
    where gradients are averaged. They take 4 bytes per element, or 2 in bf16, plus 1/N
    as much for servers on N ranks. With low_rank, matrices of the same size need
    another 4 bytes.
    """

    def __init__(
        self, ddp: DistributedDataParallel, given: Options, process_group: Any
    ) -> None:
        """Creates and registers the hook. ddp_hook() explains `given`. Collective."""
        comm = _communicator(ddp, process_group)
        own_comm = comm is not process_group
        try:
            options, found = agreed(comm, lambda: _checked(ddp, comm, given))
            comm.require_same(
                "bits, low_rank, first_steps, first_bits, plain, exact_steps, "
                "residual_dtype, hierarchy, path or parameters",
                f"{options}\n{description(found)}",
            )
            self._comm, self._options = comm, options
            self._group = ddp.process_group
            self._shapes = {name: p.shape for name, p in found.items()}
            self._units = {id(p): unit for unit, p in enumerate(found.values())}
            self._sizes = [p.numel() for p in found.values()]
            self._factors: Factors | None = None
            over = ddp.process_group if process_group is None else process_group
            self._average = self._make_average(over, list(found.values()))
            self._restored: torch.Tensor | None = None
            self._failure: Exception | None = None
            self._low_bit_backwards = 0
            self._jumps = Jumps()
            self._has_warned = False
            self._backwards = 0
            self._pass = _Pass(0, options.exact_steps > 0, 1)
            self._last = self._pass
            self._strides: dict[int, tuple[Any, list[tuple[int, ...]]]] = {}
            self._parts: deque[_Part] = deque()  # in flight, the oldest first
            self._exchanges = Exchanges(self._average)
            owned = (comm,) if own_comm else ()
            self._closer = closing(self, self._exchanges, *owned)
            registration = _Registration(self)
            agreed(comm, lambda: register_hook("ddp_hook", ddp, registration, _take))
            _averages.note(found.values(), "hook", self._closer)
        except BaseException:
            if own_comm:
                comm.close()
            raise

    def _make_average(self, group: Any, parameters: list[torch.Tensor]) -> Average:
        """Creates the average on a path that all ranks support. Collective."""
        options = self._options
        refusal = "low_rank averages factors in host memory" if options.low_rank else ""
        groups = device_groups(
            self._comm, options.path, group, parameters, options.hierarchy, refusal
        )
        if groups is not None:
            assert options.bits is not None
            return DeviceAverage(
                groups, self._sizes, options.bits, options.residual_dtype
            )
        hierarchy = _core.Hierarchy[options.hierarchy]
        if options.bits is not None:
            is_bf16 = options.residual_dtype == torch.bfloat16
            return HostAverage(
                _core.LowBitMean(
                    self._comm, self._sizes, options.bits, is_bf16, hierarchy
                )
            )
        rank, matrices = options.low_rank, matrices_of(self._shapes, options.plain)
        mean = _core.LowRankMean(
            self._comm,
            matrices,
            rank,
            options.first_steps,
            options.first_bits,
            hierarchy,
        )
        self._factors = Factors(mean, self._shapes, matrices, rank)
        return HostAverage(mean)

    @property
    def path(self) -> str:
        """Returns where averages are computed, "host" or "device"."""
        return self._average.path

    def __repr__(self) -> str:
        options = self._options
        way, when = f"{options.bits} bits", "per backward"
        if options.bits is None:
            way = (
                f"low rank {options.low_rank} after {options.first_steps} backwards in "
                f"{options.first_bits} bits"
            )
            when = "in the next backward"
        if self._exchanges.is_closed:
            return f"thinwire.ddp_hook({way}, closed)"
        elements, ranks = sum(self._sizes), self._comm.size
        _, hosts = self._average.hosts
        sent = self._average.bytes_per_pass
        exact = 8 * elements * (hosts - 1) // ranks
        where = f" on {hosts} hosts" if hosts < ranks else ""
        return (
            f"thinwire.ddp_hook({way}, {ranks} rank{'s' * (ranks > 1)}{where}, "
            f"{sent} bytes {when}{' to other hosts' if where else ''}, {exact} in fp32"
            f"{', on the device' if self.path == 'device' else ''})"
        )

    @property
    def report(self) -> HookReport | None:
        """Returns the results of the last backward in which ranks averaged, or None
        before the first. Reads the residuals once. Local.
        """
        last = self._pass
        if last.number == 0:
            return None
        residual = self._exchanges.call(self._average.worker_norm)
        squares = last.squares
        return HookReport(
            backwards=last.number,
            is_exact=last.is_exact,
            is_finite=last.is_finite,
            loss_scale=last.scale,
            bytes_sent=last.bytes_sent,
            wait_seconds=last.wait_seconds,
            residual_ratio=residual / squares**0.5 if squares > 0 else None,
        )

    @in_call("state_dict()")
    def state_dict(self, *, mean: bool = False) -> dict[str, Any]:
        """Returns the residuals by parameter name. Collective; the same on all ranks.

        worker: for each name the residuals of all ranks, or of all hosts in a
          hierarchical exchange, along the first dimension. With `mean`, that dimension
          is 1 and contains the mean, so the state does not grow with the number of
          ranks. The mean over ranks stays the same.
        server: for each name the servers' residual. Residuals are in the order of
          indices, regardless of the parameters' memory format.
        backwards: the number of backwards so far, which is compared with exact_steps.

        With low_rank, the state also contains, for parameters with factors:
        factors: for each name the factor Q of the next backward, transposed. Its shape
          is [r, columns], where columns is the product of the dimensions after the
          first.
        generators: for each name the state of the generator of new columns, an int64.
        first_passes: the number of first_steps so far.

        If the last backward has failed, some residuals come from that backward and
        others from the previous one.
        """

        def saved() -> dict[str, Any]:
            state = _state.saved(
                self._comm,
                self._average,
                self._shapes,
                self._backwards,
                self._restored,
                mean,
            )
            return state | (self._factors.saved() if self._factors else {})

        return self._exchanges.call(saved)

    @in_call("load_state_dict()")
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a state that state_dict() has returned on any number of ranks. All
        ranks must pass the same state. Collective.

        With the same number of ranks, or hosts, each receives its own residual. With
        another number, all receive the mean. A single rank adds the residuals to its
        first gradient.

        From a state without factors, a hook with low_rank takes the residuals, and
        starts with new factors and its first_steps. From a state with factors, a hook
        without low_rank takes only the residuals. Rank 0 logs either case.

        Raises CorruptCheckpoint naming what does not fit, and InvalidArgument if the
        ranks' states differ, on all ranks, before anything changes. The magnitude of
        residuals must not exceed 1e30. Raises FailedPrecondition if the last backward
        has failed.
        """
        dtype = self._options.residual_dtype

        def checked() -> tuple[torch.Tensor, torch.Tensor, int, Kept | None]:
            if self._parts:
                raise FailedPrecondition(
                    "load_state_dict() after a backward that has failed halfway: make a "
                    "new DistributedDataParallel and a new hook"
                )
            of_all = _state.checked(state, self._shapes, self._average.hosts, dtype)
            return *of_all, self._factors.checked(state) if self._factors else None

        def load() -> None:
            worker, server, backwards, kept = agreed(self._comm, checked)
            text = _state.description(state, self._shapes, backwards)
            self._comm.require_same("state", f"{text}{kept or ''}")
            self._tell_of_other(state)
            self._backwards = backwards
            if self._comm.size == 1:
                self._restored = worker.float() + server.float()
                worker, server = torch.zeros_like(worker), torch.zeros_like(server)
            if self._factors is not None and kept is not None:
                self._factors.load(worker, server, kept)
            elif self._factors is None:
                self._average.load_errors(worker, server)

        self._exchanges.call(load)

    def _tell_of_other(self, state: Mapping[str, Any]) -> None:
        """Logs missing and unused parts of a state from another kind of average."""
        has_factors = any(part in state for part in PARTS)
        if self._comm.rank == 0 and has_factors != (self._factors is not None):
            logger.warning(
                "ddp_hook: the state's factors are left out, because the hook averages "
                "in bits"
                if has_factors
                else "ddp_hook: the state has no factors: they and first_steps begin anew"
            )

    def close(self) -> None:
        """Ends the exchanges. A later backward of the DistributedDataParallel raises
        FailedPrecondition. Local.
        """
        self._closer()

    # ---- backward

    def _take(self, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        """Queues the average of a bucket, on the thread of backward."""
        self._exchanges.require_open()
        if bucket.index() == 0:
            is_exact = self._backwards < self._options.exact_steps
            self._pass = _Pass(self._backwards + 1, is_exact, self._scale())
        if bucket.is_last():
            self._backwards = self._pass.number
        values = bucket.buffer()
        if self._pass.is_exact:
            return self._exact(values)
        if values.layout != torch.strided:
            raise InvalidArgument(f"gradients must be dense, got {values.layout}")
        units = [self._units[id(parameter)] for parameter in bucket.parameters()]
        done: Future[torch.Tensor] = Future(
            devices=None if values.device.type == "cpu" else [values.device]
        )
        if self._comm.size == 1:
            self._add_restored(units, self._views(bucket) or bucket.gradients())
            done.set_result(values)
            return done
        part = self._part(bucket, units, done)
        # Backward sees exceptions from `then`, but no exceptions from set_exception().
        result = done.then(lambda future: future.value())
        self._exchanges.put(lambda: self._run(part))
        return result

    def _scale(self) -> float:
        """Returns the loss scale. If the scaler raises, this rank gives up."""
        try:
            return self._scale_now()
        except Exception as failure:
            self._comm.give_up(reason_of(failure))
            self._average.give_up()
            raise

    def _exact(self, values: torch.Tensor) -> Future[torch.Tensor]:
        """Averages as DDP does without a hook, with the same bits."""
        values *= 1 / self._group.size()
        # The backend "thinwire" does not sum exactly, but the backend beneath it does.
        group = getattr(self._group, "beneath", self._group)
        work = dist.all_reduce(values, group=group, async_op=True)
        assert work is not None
        summed: Future[list[torch.Tensor]] = work.get_future()
        return summed.then(lambda future: future.value()[0])

    def _part(
        self, bucket: dist.GradBucket, units: list[int], done: Future[torch.Tensor]
    ) -> _Part:
        buffer, index = bucket.buffer(), bucket.index()
        views = self._views(bucket)
        values = torch.cat([v.reshape(-1) for v in views]) if views else buffer
        return _Part(
            self._pass,
            index,
            bucket.is_last(),
            units,
            buffer,
            values,
            views,
            done,
            self._average.take(index, values),
        )

    def _views(self, bucket: dist.GradBucket) -> list[torch.Tensor]:
        """Returns the gradients in a bucket, or an empty list if the bucket's memory is
        already in the order of indices.

        DDP stores a gradient with the strides that its parameter had when the bucket
        was made. The views of bucket.gradients() do not have these strides.
        """
        buffer, by_index = bucket.buffer(), bucket.gradients()
        parameters, number = bucket.parameters(), bucket.index()
        memory = buffer.data_ptr(), [id(p) for p in parameters]
        if number not in self._strides or self._strides[number][0] != memory:
            strides = [strides_in_bucket(p) for p in parameters]
            self._strides[number] = memory, strides
        _, strides = self._strides[number]
        views = [
            v.as_strided(v.shape, s) for v, s in zip(by_index, strides, strict=True)
        ]
        return [] if all(view.is_contiguous() for view in views) else views

    @in_call("backward()")
    def _run(self, part: _Part) -> None:
        """Averages a bucket in place, on the thread of the exchanges."""
        try:
            self._parts.append(part)
            if self._failure is not None:
                raise self._failure
            self._exchanges.require_open()
            if part.index == 0:
                self._require_same_scale(part.of.scale)
                part.of.before = self._average.bytes_sent, self._average.wait_seconds
            with self._average.running():
                completed = self._average.begin(part.taken, part.units, part.of.scale)
                if part.is_last:
                    completed += self._average.finish()
                part.of.count(self._average)
                self._complete(part, completed)
        except Exception as failure:  # noqa: BLE001  backward raises it
            self._failure = self._failure or failure
            with suppress(FailedPrecondition):  # closing has notified the others
                self._comm.give_up(reason_of(failure))
            self._average.give_up()
            for left in self._parts:
                left.done.set_exception(failure)  # type: ignore[arg-type]
            self._parts.clear()

    def _complete(self, last: _Part, completed: list[Averaged]) -> None:
        """Passes the oldest averages to backward. The hook may be closed after the last
        one."""
        done = list(zip(self._parts, completed, strict=False))
        for part, average in done:
            part.end(average)
        if last.is_last:
            self._tell_of_scale(last.of)
        for part, _ in done:
            part.done.set_result(part.bucket)
            self._parts.popleft()

    def _require_same_scale(self, scale: float) -> None:
        """Compares the ranks' loss scales in calls 1, 2, 4, 8 and so on. Collective in
        these calls.
        """
        self._low_bit_backwards += 1
        if self._low_bit_backwards & (self._low_bit_backwards - 1) == 0:
            self._comm.require_same("the loss scale", repr(scale))

    def _tell_of_scale(self, of: _Pass) -> None:
        """Logs once that gradients seem to contain an unknown loss scale."""
        # The device may still compute this average, for which nothing should wait.
        before, self._last = self._last, of
        if self._average.path == "device":
            of = before
        if self._is_told or self._has_warned:
            return
        self._has_warned = self._jumps.has_jumped(of.squares**0.5)
        if self._has_warned and self._comm.rank == 0:
            logger.warning(
                "ddp_hook: at backward %d the gradient's norm had jumped by a power of "
                "two, as if its loss scale had changed: call watch(grad_scaler) or "
                "set_loss_scale(scale) of the hook, or residuals have another scale "
                "than gradients",
                of.number,
            )

    @torch.no_grad()
    def _add_restored(self, units: list[int], gradients: list[torch.Tensor]) -> None:
        """Adds the residuals of a loaded state on a single rank, which does not
        compress."""
        if self._restored is None:
            return
        residuals = torch.split(self._restored, self._sizes)
        for unit, gradient in zip(units, gradients, strict=True):
            added = residuals[unit] * self._pass.scale
            gradient += added.view_as(gradient).to(gradient)
            residuals[unit].zero_()


def ddp_hook(
    ddp: DistributedDataParallel,
    bits: int | None = None,
    *,
    low_rank: int = 0,
    first_steps: int = FIRST_STEPS,
    first_bits: int = FIRST_BITS,
    plain: Iterable[str] = (),
    exact_steps: int = 0,
    residual_dtype: torch.dtype = torch.float32,
    hierarchy: Literal["auto", "flat", "by_host"] = "auto",
    path: Literal["auto", "host", "device"] = "auto",
    process_group: Any = None,
) -> Hook:
    """Makes a DistributedDataParallel average its gradients in 8 or 4 bits each way, or as
    products of thin factors, with error feedback. Collective, between backwards.

    The optimizer, the loop and DDP's options do not change. Exchanges run during
    backward, on a separate group and thread.

    bits: 4 or 8 per element; 4 without low_rank. 8 is closer to DDP, and 4 sends half as
      much.
    low_rank: the largest number of columns of a factor, in [1, 64]; 0 averages in
      `bits`. Factors are sent in 8 bits. A parameter is a matrix of a rows, its first
      dimension, and b columns. With r = min(low_rank, a, b), the parameter has factors
      if 2 r (a + b) < a b. Other parameters are sent in 8 bits.
    first_steps: number of first finite averages in first_bits bits, with low_rank.
    first_bits: 4 or 8.
    plain: names of parameters without factors, or fnmatch patterns of such names.
    exact_steps: number of first backwards that DDP averages exactly, as without a hook.
    residual_dtype: float32 or bfloat16; float32 with low_rank. bfloat16 takes half the
      memory and loses the remainders of its rounding.
    hierarchy: as for the optimizers. With "auto", ranks of one host first average in
      fp32 if all hosts have the same number of ranks, and more than one.
    path: "host" averages in host memory, to which gradients of other devices are
      copied. "device" averages on the gradients' device, over the backend that the
      process group has for it. "auto" chooses "device" for devices that have a backend,
      such as NCCL, unless low_rank is set. Both paths produce the same residuals and,
      up to the order in which ranks of a host are added, the same bits.
    process_group: as for the optimizers; None is the group of `ddp`.

    If any rank's gradient is not finite, its bucket becomes NaN on all ranks, and the
    bucket's residuals do not change. A GradScaler therefore skips the step on all
    ranks. Pass the scaler to the result's watch(). A single rank changes nothing.

    If a rank is lost, backward() raises a RuntimeError with the text of CommFailure,
    which names the rank.

    A copy of `ddp`, by copy.deepcopy(), torch.save() or AveragedModel, has no hook. Call
    ddp_hook() on it for low-bit averages.

    Raises InvalidArgument for an argument out of range and for gradients that are
    sparse, complex or fp64. Raises FailedPrecondition if `ddp` already has a
    communication hook, or torch.compile's Python reducer, or if a Thinwire optimizer
    averages the gradients. In these cases nothing has changed on any rank.
    """
    if not isinstance(ddp, DistributedDataParallel):
        refuse_on_all_ranks(
            TypeError(
                f"ddp must be a DistributedDataParallel, got {type(ddp).__name__}"
            )
        )
    options = Options(
        bits=bits,
        low_rank=low_rank,
        first_steps=first_steps,
        first_bits=first_bits,
        plain=plain,
        exact_steps=exact_steps,
        residual_dtype=residual_dtype,
        hierarchy=hierarchy,
        path=path,
    )
    return Hook(ddp, options, process_group)


def _communicator(
    ddp: DistributedDataParallel, process_group: Any
) -> _core.Communicator:
    """Returns a communicator over the group, on which ranks first agree over DDP's
    group.
    """
    comm = communicator_for(ddp.process_group)
    try:
        agreed(comm, lambda: require_group(process_group))
        comm.require_same("process_group", str(process_group is None))
    except BaseException:
        comm.close()
        raise
    if process_group is None:
        return comm
    comm.close()
    return communicator_for(process_group)


def _checked(
    ddp: DistributedDataParallel,
    comm: _core.Communicator,
    given: Options,
) -> tuple[Options, dict[str, torch.nn.Parameter]]:
    """Returns the options and the parameters by name."""
    found = averaged(ddp)
    options = given.checked(found)
    if comm.size != ddp.process_group.size():
        raise InvalidArgument(
            "process_group must have the ranks of the group of ddp, which are "
            f"{ddp.process_group.size()}, got {comm.size}"
        )
    return options, found

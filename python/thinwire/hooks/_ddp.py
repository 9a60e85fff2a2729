# SPDX-License-Identifier: Apache-2.0
"""Averages of DistributedDataParallel in 8 or 4 bits, with error feedback."""

# torch compares the hook's annotations with classes, so they must not be strings.
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.utils.dlpack import from_dlpack

from .. import _averages, _core
from .._agreement import agreed
from .._log import logger
from .._staging import Staging
from ..comm import communicator_for
from ..comm.calls import in_call
from ..comm.groups import require_group
from ..comm.lifetime import reason_of
from ..comm.modules import register_hook
from ..errors import FailedPrecondition, InvalidArgument
from ..optim._lifetime import closing
from ..report import HookReport
from . import _state
from ._parameters import (
    averaged,
    description,
    refuse_on_all_ranks,
    require_options,
    strides_in_bucket,
)
from ._scale import Jumps, ScaledHook
from ._thread import Exchanges


@dataclass
class _Pass:
    number: int
    is_exact: bool
    scale: float
    squares: float = 0
    is_finite: bool = True
    bytes_sent: int = 0
    wait_seconds: float = 0
    before: tuple[int, float] = (0, 0)  # both, of all backwards before

    def count(self, mean: _core.LowBitMean) -> None:
        sent, waited = self.before
        self.bytes_sent = mean.bytes_sent - sent
        self.wait_seconds = mean.wait_seconds - waited


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
    on_host: torch.Tensor  # the values, or a copy
    staging: Staging | None = None
    event: Any = None  # of the copy

    def take(self, is_finite: bool) -> None:
        norm = torch.linalg.vector_norm(self.on_host, dtype=torch.float32)
        self.of.squares += (float(norm) / self.of.scale) ** 2
        self.of.is_finite &= is_finite
        if self.staging is not None:
            self.staging.to_device([self.on_host], [self.values])
        begin = 0
        for view in self.views:
            end = begin + view.numel()
            view.copy_(self.values[begin:end].view(view.shape))
            begin = end


class _Registration:
    """The hook, as DDP knows it. In a copy of the DDP, or after pickle, there is none."""

    def __init__(self, hook: "Hook | None" = None) -> None:
        self.hook = hook

    def __reduce__(self) -> Any:
        return _Registration, ()


def _take(registration: _Registration, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    assert registration.hook is not None  # DDP registers no hook in its copies
    return registration.hook._take(bucket)


class Hook(ScaledHook):
    """Averages the gradients of a DistributedDataParallel in 8 or 4 bits; ddp_hook()
    makes it.

    A residual has what rounding took from a gradient, and is added to the next one.
    Residuals belong to parameters, so DDP may rebuild its buckets. They are on the host:
    4 bytes per element, or 2 in bf16, and on N ranks 1/N of that for servers.
    """

    def __init__(
        self, ddp: DistributedDataParallel, options: dict[str, Any], process_group: Any
    ) -> None:
        """Makes and registers the hook; ddp_hook() explains `options`. Collective."""
        comm = _communicator(ddp, process_group)
        own_comm = comm is not process_group
        try:
            found = agreed(comm, lambda: _checked(ddp, comm, **options))
            comm.require_same(
                "bits, exact_steps, residual_dtype, hierarchy or parameters",
                f"{options}\n{description(found)}",
            )
            self._comm, self._bits = comm, options["bits"]
            self._exact_steps = options["exact_steps"]
            self._group = ddp.process_group
            self._shapes = {name: p.shape for name, p in found.items()}
            self._units = {id(p): unit for unit, p in enumerate(found.values())}
            self._sizes = [p.numel() for p in found.values()]
            is_bf16 = options["residual_dtype"] == torch.bfloat16
            hierarchy = _core.Hierarchy[options["hierarchy"]]
            self._mean = _core.LowBitMean(
                comm, self._sizes, self._bits, is_bf16, hierarchy
            )
            self._debt: torch.Tensor | None = None
            self._failure: Exception | None = None
            self._low_bit_backwards = 0
            self._jumps = Jumps()
            self._has_warned = False
            self._backwards = 0
            self._pass = _Pass(0, self._exact_steps > 0, 1)
            self._strides: dict[int, tuple[Any, list[tuple[int, ...]]]] = {}
            self._stagings: dict[torch.device, Staging] = {}
            self._on_host: dict[Any, torch.Tensor] = {}
            self._parts: deque[_Part] = deque()  # in flight, the oldest first
            self._exchanges = Exchanges(self._mean)
            owned = (comm,) if own_comm else ()
            self._closer = closing(self, self._exchanges, *owned)
            registration = _Registration(self)
            agreed(comm, lambda: register_hook("ddp_hook", ddp, registration, _take))
            _averages.note(found.values(), "hook", self._closer)
        except BaseException:
            if own_comm:
                comm.close()
            raise

    def __repr__(self) -> str:
        elements, ranks = sum(self._sizes), self._comm.size
        _, hosts = self._mean.hosts
        sent = self._mean.bytes_per_pass
        exact = 8 * elements * (hosts - 1) // ranks
        where = f" on {hosts} hosts" if hosts < ranks else ""
        return (
            f"thinwire.ddp_hook({self._bits} bits, {ranks} rank{'s' * (ranks > 1)}{where}, "
            f"{sent} bytes per backward{' to other hosts' if where else ''}, {exact} in fp32)"
        )

    @property
    def report(self) -> HookReport | None:
        """Results of the last backward in which ranks averaged; None before the first.
        Reading it takes a pass over the residuals. Local.
        """
        last = self._pass
        if last.number == 0:
            return None
        error = self._exchanges.call(lambda: from_dlpack(self._mean.worker_error()))
        norm = float(torch.linalg.vector_norm(error, dtype=torch.float32))
        return HookReport(
            backwards=last.number,
            is_exact=last.is_exact,
            is_finite=last.is_finite,
            loss_scale=last.scale,
            bytes_sent=last.bytes_sent,
            wait_seconds=last.wait_seconds,
            residual_ratio=norm / last.squares**0.5 if last.squares > 0 else None,
        )

    @in_call("state_dict()")
    def state_dict(self, *, mean: bool = False) -> dict[str, Any]:
        """Returns the residuals by parameter name. Collective; the same on all ranks.

        worker: per name, one residual of each rank, with the ranks as first dimension;
          of each host in a hierarchical exchange.
          With `mean`, the first dimension is 1 and has the mean, so the state does not
          grow with the number of ranks. The mean over ranks stays the same.
        server: per name, the servers' residual. Both are by index, whatever memory format
          the parameters have.
        backwards: how many backwards there were, which exact_steps counts.

        After a backward that has failed halfway, some residuals are those of that one.
        """
        return self._exchanges.call(
            lambda: _state.saved(
                self._comm, self._mean, self._shapes, self._backwards, self._debt, mean
            )
        )

    @in_call("load_state_dict()")
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what state_dict() has returned on any number of ranks. Collective: all
        ranks pass the same.

        On the same number of ranks, or hosts, each gets its own residual. On another
        number, all get the mean. A single rank adds the residuals to its first gradient.

        Raises CorruptCheckpoint naming what does not fit, and InvalidArgument if the
        ranks' states differ, on all ranks, before anything changes. Residuals must not be
        above 1e30 in magnitude. Raises FailedPrecondition after a backward that has
        failed halfway.
        """
        dtype = from_dlpack(self._mean.worker_error()).dtype

        def checked() -> tuple[torch.Tensor, torch.Tensor, int]:
            if self._parts:
                raise FailedPrecondition(
                    "load_state_dict() after a backward that has failed halfway: make a "
                    "new DistributedDataParallel and a new hook"
                )
            return _state.checked(state, self._shapes, self._mean.hosts, dtype)

        def load() -> None:
            worker, server, backwards = agreed(self._comm, checked)
            text = _state.description(state, self._shapes, backwards)
            self._comm.require_same("state", text)
            self._backwards = backwards
            if self._comm.size == 1:
                self._debt = worker.float() + server.float()
            else:
                self._mean.load_errors(worker, server)

        self._exchanges.call(load)

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
            is_exact = self._backwards < self._exact_steps
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
            self._pay(units, self._views(bucket) or bucket.gradients())
            done.set_result(values)
            return done
        part = self._part(bucket, units, done)
        # Exceptions from `then` reach backward; those from set_exception() do not.
        result = done.then(lambda future: future.value())
        self._exchanges.put(lambda: self._run(part))
        return result

    def _scale(self) -> float:
        """Returns the loss scale; without one, this rank gives up."""
        try:
            return self._scale_now()
        except Exception as failure:
            self._comm.give_up(reason_of(failure))
            raise

    def _exact(self, values: torch.Tensor) -> Future[torch.Tensor]:
        """Averages as DDP does without a hook, with the same bits."""
        values *= 1 / self._group.size()
        work = dist.all_reduce(values, group=self._group, async_op=True)
        assert work is not None
        summed: Future[list[torch.Tensor]] = work.get_future()
        return summed.then(lambda future: future.value()[0])

    def _part(
        self, bucket: dist.GradBucket, units: list[int], done: Future[torch.Tensor]
    ) -> _Part:
        buffer, index = bucket.buffer(), bucket.index()
        views = self._views(bucket)
        values = torch.cat([v.reshape(-1) for v in views]) if views else buffer
        part = _Part(
            self._pass,
            index,
            bucket.is_last(),
            units,
            buffer,
            values,
            views,
            done,
            values,
        )
        if values.device.type != "cpu":
            part.staging = self._staging_of(values.device)
            key = (index, values.numel(), values.dtype, values.device)
            if key not in self._on_host:
                self._on_host[key] = part.staging.zeros(values.numel(), values.dtype)
            part.on_host = self._on_host[key]
            part.event = part.staging.to_host(values, part.on_host)
        return part

    def _views(self, bucket: dist.GradBucket) -> list[torch.Tensor]:
        """Returns the gradients in a bucket if its memory is not in the order of their
        indices, and nothing if it is.

        DDP lays a gradient out as its parameter was when DDP made the bucket. The views
        of bucket.gradients() do not follow that.
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
                part.of.before = self._mean.bytes_sent, self._mean.wait_seconds
            if part.event is not None:
                part.event.synchronize()
            completed = self._mean.begin(part.on_host, part.units, part.of.scale)
            if part.is_last:
                completed += self._mean.finish()
            part.of.count(self._mean)
            self._complete(part, completed)
        except Exception as failure:  # noqa: BLE001  backward raises it
            self._failure = self._failure or failure
            with suppress(FailedPrecondition):  # other ranks know if it is closed
                self._comm.give_up(reason_of(failure))
            for left in self._parts:
                left.done.set_exception(failure)  # type: ignore[arg-type]
            self._parts.clear()

    def _complete(self, last: _Part, completed: list[bool]) -> None:
        """Gives backward the oldest averages; after the last the hook may be closed."""
        done = list(zip(self._parts, completed, strict=False))
        for part, is_finite in done:
            part.take(is_finite)
        if last.is_last:
            self._tell_of_scale(last.of)
        for part, _ in done:
            part.done.set_result(part.bucket)
            self._parts.popleft()

    def _require_same_scale(self, scale: float) -> None:
        """Compares the ranks' loss scales in calls 1, 2, 4, 8 and so on. Collective then."""
        self._low_bit_backwards += 1
        if self._low_bit_backwards & (self._low_bit_backwards - 1) == 0:
            self._comm.require_same("the loss scale", repr(scale))

    def _staging_of(self, device: torch.device) -> Staging:
        if device not in self._stagings:
            self._stagings[device] = Staging(device)
        return self._stagings[device]

    def _tell_of_scale(self, of: _Pass) -> None:
        """Logs once that gradients seem to have a loss scale that is not known."""
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
    def _pay(self, units: list[int], gradients: list[torch.Tensor]) -> None:
        """Adds the residuals of a loaded state, on a single rank, which compresses nothing."""
        if self._debt is None:
            return
        owed = torch.split(self._debt, self._sizes)
        for unit, gradient in zip(units, gradients, strict=True):
            gradient += (owed[unit] * self._pass.scale).view_as(gradient).to(gradient)
            owed[unit].zero_()


def ddp_hook(
    ddp: DistributedDataParallel,
    bits: int = 4,
    *,
    exact_steps: int = 0,
    residual_dtype: torch.dtype = torch.float32,
    hierarchy: Literal["auto", "flat", "by_host"] = "auto",
    process_group: Any = None,
) -> Hook:
    """Makes a DistributedDataParallel average its gradients in 8 or 4 bits each way, with
    error feedback. Collective, between backwards.

    The optimizer, the loop and DDP's options stay as they are. Exchanges run on a group
    and a thread of their own, during backward.

    bits: 4 or 8 per element. 8 is closer to DDP, and 4 sends half as much.
    exact_steps: how many first backwards DDP averages exactly, by its own rule.
    residual_dtype: float32 or bfloat16, which takes half the memory and loses the
      remainders of its rounding.
    hierarchy: as for the optimizers. With "auto", ranks of one host average in fp32
      first if all hosts hold the same number of ranks, and more than one.
    process_group: as for the optimizers; None is the group of `ddp`.

    If any rank's gradient is not finite, its bucket becomes NaN on all ranks, and its
    residuals stay. So a GradScaler skips the step on all ranks. Give the scaler to
    watch() of the result. A single rank changes nothing.

    If a rank is lost, backward() raises a RuntimeError with the text of CommFailure,
    which names the rank.

    A copy of `ddp`, by copy.deepcopy(), torch.save() or AveragedModel, has no hook. Call
    ddp_hook() on it for low-bit averages.

    Raises InvalidArgument for an argument out of range and for gradients that are
    sparse, complex or fp64. Raises FailedPrecondition if `ddp` has a communication hook
    already, or torch.compile's Python reducer, or if a Thinwire optimizer averages the
    gradients. Then nothing has changed on any rank.
    """
    if not isinstance(ddp, DistributedDataParallel):
        refuse_on_all_ranks(
            TypeError(
                f"ddp must be a DistributedDataParallel, got {type(ddp).__name__}"
            )
        )
    options = {
        "bits": bits,
        "exact_steps": exact_steps,
        "residual_dtype": residual_dtype,
        "hierarchy": hierarchy,
    }
    return Hook(ddp, options, process_group)


def _communicator(
    ddp: DistributedDataParallel, process_group: Any
) -> _core.Communicator:
    """Returns a communicator over the group, on which ranks agree over DDP's first."""
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
    bits: int,
    exact_steps: int,
    residual_dtype: torch.dtype,
    hierarchy: str,
) -> dict[str, torch.nn.Parameter]:
    require_options(bits, residual_dtype)
    if type(exact_steps) is not int or exact_steps < 0:
        raise InvalidArgument(f"exact_steps must be >= 0, got {exact_steps!r}")
    if not isinstance(hierarchy, str) or hierarchy not in _core.Hierarchy.__members__:
        raise InvalidArgument(
            f"hierarchy must be auto, flat or by_host, got {hierarchy!r}"
        )
    if comm.size != ddp.process_group.size():
        raise InvalidArgument(
            "process_group must have the ranks of the group of ddp, which are "
            f"{ddp.process_group.size()}, got {comm.size}"
        )
    return averaged(ddp)

# SPDX-License-Identifier: Apache-2.0
"""Reduce-scatters of FSDP2 in 8 or 4 bits, with error feedback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.utils.dlpack import from_dlpack

from .. import _averages, _core
from .._agreement import agreed
from .._staging import Staging
from ..comm import communicator_for
from ..comm.calls import in_call
from ..comm.lifetime import reason_of
from ..errors import FailedPrecondition
from ..optim._lifetime import closing
from . import _state
from ._device_scatter import DeviceReduceScatter
from ._parameters import refuse_on_all_ranks, require_options
from ._path import device_groups, require_path
from ._scale import ScaledHook
from ._shards import Part, Sharded, group_of, require_dtype, sharded, unknown


class FsdpHook(ScaledHook):
    """Averages the gradients of an FSDP2 module in 8 or 4 bits. Made by fsdp_hook().

    A residual is the rounding error of a gradient, and is added to the next gradient.
    Each rank stores residuals for the whole module, in the memory where gradients are
    averaged: 4 bytes per element, or 2 in bf16.
    """

    path: str
    """Location of the averages: "host" or "device"."""

    def __init__(
        self, module: FSDPModule, bits: int, residual_dtype: torch.dtype, path: str
    ) -> None:
        """Makes and registers the hook. Collective."""
        comm = communicator_for(group_of(module))
        try:
            found = agreed(
                comm, lambda: _checked(module, comm.size, bits, residual_dtype, path)
            )
            comm.require_same(
                "bits, residual_dtype, path or parameters",
                f"{bits} {residual_dtype} {path}\n{found.description}",
            )
            self._comm, self._bits, self._shapes = comm, bits, found.shapes
            self._elements = sum(shape.numel() for shape in found.shapes.values())
            pieces = [part.pieces for part in found.parts]
            groups = device_groups(comm, path, group_of(module), found.parameters)
            self.path = "host" if groups is None else "device"
            self._exchange: _core.LowBitReduceScatter | DeviceReduceScatter
            if groups is None:
                is_bf16 = residual_dtype == torch.bfloat16
                self._exchange = _core.LowBitReduceScatter(
                    comm, self._elements, pieces, bits, is_bf16
                )
            else:
                self._exchange = DeviceReduceScatter(
                    groups, self._elements, pieces, bits, residual_dtype
                )
            self._closer = closing(self, self._exchange, comm)
            for number, part in enumerate(found.parts):
                part.module.set_custom_reduce_scatter(
                    _ReduceScatter(self, number, part)
                )
            module.set_reduce_scatter_unused_params(True)
            _averages.note(found.parameters, "hook", self._closer)
        except BaseException:
            comm.close()
            raise

    def __repr__(self) -> str:
        ranks = self._comm.size
        return (
            f"thinwire.fsdp_hook({self._bits} bits, {ranks} ranks, "
            f"{self._exchange.bytes_per_pass} bytes per backward, "
            f"{4 * self._elements * (ranks - 1) // ranks} in fp32"
            f"{', on the device' if self.path == 'device' else ''})"
        )

    @property
    def bytes_sent(self) -> int:
        """Returns the bytes that this rank has sent to others since construction began,
        including bytes for agreement and states. On the path "device", only gradients
        count.
        """
        return self._exchange.bytes_sent

    @property
    def wait_seconds(self) -> float:
        """Returns the time that backward has spent waiting for other ranks since
        construction. On a device the time is about 0, because streams wait.
        """
        return self._exchange.wait_seconds

    @in_call("state_dict()")
    def state_dict(self, *, mean: bool = False) -> dict[str, Any]:
        """Returns the residuals by parameter name. Collective; the same on all ranks.

        worker: for each name the residuals of all ranks, each of the whole parameter,
          along the first dimension. With `mean`, that dimension is 1 and contains the
          mean, so the state does not grow with the number of ranks. The sum over ranks
          stays the same.
        """
        own: torch.Tensor = from_dlpack(self._exchange.error())
        comm = self._comm
        place = comm.rank, comm.size
        return {"worker": _state.saved_worker(comm, own, place, self._shapes, mean)}

    @in_call("load_state_dict()")
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a result of state_dict() from any number of ranks. Collective: all
        ranks pass the same state.

        With the same number of ranks, each receives its own residual. With another
        number, all receive the mean. FSDP2 does not call the hook on a single rank,
        which therefore keeps the residual for a later state_dict().

        Raises CorruptCheckpoint naming what does not fit, and InvalidArgument if the
        ranks' states differ, on all ranks, before anything changes. The magnitude of
        residuals must not exceed 1e30.
        """
        place = self._comm.rank, self._comm.size
        dtype = from_dlpack(self._exchange.error()).dtype
        own = agreed(
            self._comm,
            lambda: _state.checked_worker(state, self._shapes, place, "module", dtype),
        )
        self._comm.require_same("state", _state.description(state, self._shapes))
        self._exchange.load_error(own)

    def close(self) -> None:
        """Ends the exchanges. A later backward of the module raises FailedPrecondition.
        Local.
        """
        self._closer()

    @in_call("backward()")
    def _average(self, part: int, gradient: torch.Tensor, result: torch.Tensor) -> None:
        self._exchange.average(part, gradient, result, self._scale_now())

    def _give_up(self, failure: Exception) -> None:
        if not self._comm.closed:
            self._comm.give_up(reason_of(failure))
        if isinstance(self._exchange, DeviceReduceScatter):
            self._exchange.give_up()


class _ReduceScatter:
    """One module's reduce-scatter, with the interface of torch's ReduceScatter."""

    def __init__(self, hook: FsdpHook, number: int, part: Part) -> None:
        self._hook, self._number, self._part = hook, number, part
        self._name, self._size = part.name, part.size
        self._is_compared = False
        self._staging: Staging | None = None
        self._on_host: tuple[torch.Tensor, torch.Tensor] | None = None

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        # Padding is not sent, so it must be set in the result.
        return torch.zeros(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Returns after the exchange, because FSDP2 reads the result at once. On the
        path "device" the exchange is queued on the current stream.
        """
        try:
            self._check(input_tensor, op)
            if not self._is_compared:
                # torch runs the callback after backward.
                torch.autograd.Variable._execution_engine.queue_callback(self._compare)
            if self._hook.path == "device" or input_tensor.device.type == "cpu":
                self._hook._average(self._number, input_tensor, output_tensor)
            else:
                self._average_staged(input_tensor, output_tensor)
        except Exception as failure:
            self._hook._give_up(failure)
            raise

    def _check(self, gradient: torch.Tensor, op: Any) -> None:
        require_dtype(self._name, gradient.dtype)
        if op != dist.ReduceOp.AVG:
            raise FailedPrecondition(
                f"fsdp_hook: FSDP2 must average gradients, but '{self._name}' asks for "
                f"{op}: do without set_gradient_divide_factor() and "
                "set_force_sum_reduction_for_comms()"
            )
        if gradient.numel() != self._size:
            raise FailedPrecondition(
                f"fsdp_hook: '{self._name}' must reduce {self._size} elements, got "
                f"{gradient.numel()}: make another hook after parameters have been "
                "frozen or unfrozen, and leave set_reduce_scatter_unused_params() on"
            )

    def _compare(self) -> None:
        """Raises FailedPrecondition at the end of the first backward, and closes the
        hook, if FSDP2's layout of gradients is not as the hook expects. No residual has
        been added to a gradient yet, unless a state was loaded.
        """
        self._is_compared = True
        misplaced = self._part.misplaced()
        if misplaced is not None:
            self._hook.close()
            raise unknown(f"it has moved '{misplaced}' of '{self._name}' in the buffer")

    def _average_staged(self, gradient: torch.Tensor, result: torch.Tensor) -> None:
        if self._staging is None:
            self._staging = Staging(gradient.device)
        if self._on_host is None or self._on_host[0].dtype != gradient.dtype:
            self._on_host = (
                self._staging.zeros(gradient.numel(), gradient.dtype),
                self._staging.zeros(result.numel(), result.dtype),
            )
        there, back = self._on_host
        self._staging.wait()  # the previous result is still being copied
        event = self._staging.to_host(gradient, there)
        if event is not None:
            event.synchronize()
        self._hook._average(self._number, there, back)
        self._staging.to_device([back], [result])


def fsdp_hook(
    module: FSDPModule,
    bits: int = 8,
    *,
    residual_dtype: torch.dtype = torch.float32,
    path: Literal["auto", "host", "device"] = "auto",
) -> FsdpHook:
    """Makes the reduce-scatters of an FSDP2 module (torch's fully_shard()) send their
    gradients in 8 or 4 bits, with error feedback. Collective, before the first forward.
    Experimental: it reads the layout of gradients from FSDP2, which torch does not
      document. Tested with torch 2.13 and 2.14.1.

    The optimizer and the loop do not change. All FSDP modules inside `module` are
    included. All-gathers of parameters remain exact.

    bits: 4 or 8 per element. 8 is closer to FSDP2, and 4 sends half as much.
    residual_dtype: float32 or bfloat16, which takes half the memory and loses the
      remainders of its rounding.
    path: as for ddp_hook(). Both paths produce the same residuals and bits.

    A gradient is not rounded a second time on its way to the rank that owns it. If an
    element of a rank's gradient is not finite, up to 1024 elements around it become NaN
    on their owner. The residuals of these elements do not change. With the hook, FSDP2
    fills the gradient of a parameter that was not used with 0, plus the parameter's
    residual. A single rank changes nothing.

    FSDP2 reads the result as soon as the hook returns, so on the host exchanges do not
    overlap with backward. On a device exchanges run on FSDP2's stream. If a rank is
    lost during an exchange, backward() raises CommFailure, which names the rank. During
    FSDP2's own all-gathers, backward() raises torch's error, which may name no rank.

    Raises TypeError unless `module` is an FSDPModule.

    Raises InvalidArgument for an argument out of range, and for gradients that are
    reduced in other types than fp32 and bf16. The same error is raised for parameters
    that are sharded over more than one mesh, or over another dimension than 0.

    Raises FailedPrecondition after a forward, or if this torch does not support the
    hook. The same error is raised if a module already has a custom reduce-scatter, or
    if a Thinwire optimizer averages the gradients. In these cases nothing has changed
    on any rank.
    """
    if not isinstance(module, FSDPModule):
        refuse_on_all_ranks(
            TypeError(
                "module must be an FSDPModule (fully_shard()), got "
                f"{type(module).__name__}"
            )
        )
    return FsdpHook(module, bits, residual_dtype, path)


def _checked(
    module: FSDPModule, ranks: int, bits: int, residual_dtype: torch.dtype, path: str
) -> Sharded:
    require_options(bits, residual_dtype)
    require_path(path)
    found = sharded(module, ranks)
    _averages.require_free(found.parameters, "hook")
    return found

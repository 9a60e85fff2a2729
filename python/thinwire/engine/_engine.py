# SPDX-License-Identifier: Apache-2.0
"""The Engine: a module, its optimizer, its schedule and its communication in one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from .. import _core, _log
from .._agreement import agreed, telling_others
from ..comm import communicator_for
from ..comm.calls import in_call
from ..comm.lifetime import note_daemon, reason_of
from ..config import Source, named_backend
from ..errors import CommFailure, FailedPrecondition, InvalidArgument
from ..optim import _attributes
from ..optim._edits import undoes_edits
from ..optim._experts import Experts
from ..optim._lifetime import closing
from ..optim._settings import set_rate
from ..report import EngineReport
from ._build import (
    Plan,
    leaders_for,
    link_for,
    make_parts,
    make_plan,
    require_shareable,
)
from ._optimizer import ConfigSchedule, EngineOptimizer
from ._others import ModuleOthers
from ._progress import Monitoring, Progress
from ._saving import Saving
from ._unavailable import NotHere
from ._values import Values


class Engine(NotHere, Values, Saving):
    """Trains a module by a configuration; initialize() makes it.

        loss = engine(batch)
        engine.backward(loss)
        engine.step()

    Gradients are averaged while backward computes others. The module's trainable
    parameters become views of flat memory in the configuration's precision. If that has
    16 bits and all parameters are fp32, frozen parameters and persistent fp32 buffers are
    converted too. Parameters on another device stay there, and flat memory on the host
    has copies. The engine zeroes the gradients. Attributes that the engine does not have
    are those of `module`.

    The constructor, backward(), step() at boundaries, mean(), evaluation(),
    save_checkpoint() and load_checkpoint() are collective. With ZeRO, lean
    1-bit Adam and a leader per host so are load_module_state_dict() and whole values
    (full_parameter() and its like).
    """

    def __init__(
        self,
        model: Any,
        config: Source | Callable[[], Source],
        *,
        optimizer: Any = None,
        model_parameters: Any = None,
        training_data: Dataset[Any] | None = None,
        lr_scheduler: Any = None,
        collate_fn: Callable[..., Any] | None = None,
        process_group: Any = None,
        mpu: Any = None,
        local_rank: int | None = None,
    ) -> None:
        """Makes the engine; initialize() explains the arguments. Collective."""
        super().__init__()
        self._process = os.getpid()
        owns_comm = not isinstance(process_group, _core.Communicator)
        backend = named_backend(config)
        self._comm = comm = communicator_for(process_group, backend=backend)
        experts = Experts()
        self._hosts = None
        self._together = None
        model_parallel_group = _attributes.model_parallel_group(mpu)

        def prepare() -> Plan:
            plan = agreed(
                comm,
                lambda: make_plan(
                    comm,
                    model,
                    config,
                    optimizer,
                    model_parameters,
                    training_data,
                    lr_scheduler is not None,
                    mpu,
                    process_group is not None,
                ),
            )
            self._config = plan.config
            self._monitoring = Monitoring(plan.monitors)
            self._client = plan.client
            self.optimizer = EngineOptimizer(
                self, plan.groups, plan.client, plan.places
            )
            self._split = plan.split
            agreed(comm, lambda: self._set_scheduler(lr_scheduler, optimizer))
            experts.join(comm, plan.groups)
            if model_parallel_group is None:
                self._hosts = leaders_for(comm, plan)
            else:
                agreed(comm, lambda: _attributes.require_model_parallel(plan.config))
            return plan

        try:
            # Some of these take part in exchanges, which a rank without them would miss.
            comm.require_same(
                "optimizer, lr_scheduler and the model-parallel group",
                f"optimizer is None: {optimizer is None}\n"
                f"lr_scheduler is None: {lr_scheduler is None}\n"
                f"mpu has no model-parallel group: {model_parallel_group is None}\n",
            )
            if model_parallel_group is not None:
                self._together = experts.of(model_parallel_group)
            # If this raises for a part of a model, ranks of other parts raise too.
            plan = agreed(self._together, prepare)
            core, memory, buffers = agreed(
                self._together,
                lambda: make_parts(comm, model, plan, experts, self._hosts),
            )
            if model_parallel_group is not None:
                assert isinstance(core, _core.Engine) and self._together is not None
                alike = _attributes.counted_elsewhere(mpu, experts, plan.places)
                core.set_model_parallel(self._together, alike)
        except BaseException:
            if self._hosts is not None:
                self._hosts.close()
            for owned in (*experts.owned, *((comm,) if owns_comm else ())):
                owned.close()
            raise
        self.module = model
        self._native, self._memory, self._buffers_of_module = core, memory, buffers
        self._left_out = set(plan.left_out)
        owned = (*experts.owned, *((comm,) if owns_comm else ()))
        self._close = closing(self, core, *owned)
        self._told = (comm, *experts.all)
        self._batch = plan.config.batch(comm.size)
        self._marks = memory.marks() if undoes_edits(plan.config) else None
        self._is_behind = False
        self._link = link_for(core, memory, plan.config)
        self._others = ModuleOthers(model, memory.parameters, memory.names, comm.rank)
        core.set_others(self._others.describe)
        self._register_parameters()
        self._set_numbers(local_rank)
        self.training_dataloader = None
        if training_data is not None:
            self.training_dataloader = self.deepspeed_io(
                training_data, collate_fn=collate_fn
            )
        _log.forward(comm)

    def _set_numbers(self, local_rank: int | None) -> None:
        self.global_steps = 0
        self.micro_steps = 0
        self.global_samples = 0
        self.global_rank = self._comm.rank
        self.world_size = self.dp_world_size = self._comm.size
        from_launcher = os.environ.get("LOCAL_RANK", str(self.global_rank))
        given = -1 if local_rank is None else local_rank
        self.local_rank = given if given >= 0 else int(from_launcher)
        self.device = self._memory.parameters[0].device
        self.report = None
        self._progress = Progress(self._comm, self._config, self._native)
        self._backwards = 0  # since the last boundary

    def _set_scheduler(self, lr_scheduler: Any, given: Any) -> None:
        self._own_scheduler = lr_scheduler is not None
        self.lr_scheduler = None
        if lr_scheduler is not None:
            if not hasattr(lr_scheduler, "step") and callable(lr_scheduler):
                lr_scheduler = lr_scheduler(self.optimizer)
            if not callable(getattr(lr_scheduler, "step", None)):
                raise InvalidArgument(
                    "lr_scheduler: must have step(), as torch's, or be a callable that "
                    f"makes one, got {type(lr_scheduler).__name__}"
                )
            self._require_known(getattr(lr_scheduler, "optimizer", None), given)
            self.lr_scheduler = lr_scheduler
        elif not self._config.schedule.is_constant:
            self.lr_scheduler = ConfigSchedule(self.optimizer)
            self.optimizer.show_rates(self._config, 0)

    def _require_known(self, of_scheduler: Any, given: Any) -> None:
        groups = getattr(of_scheduler, "param_groups", None)
        own = self.optimizer.param_groups
        # A scheduler of the optimizer that was given does not know groups of experts
        # that were taken out of its groups.
        if groups is None or (
            len(groups) in (len(own), len(own) - len(self._split))
            and all(a is b for a, b in zip(groups, own, strict=False))
        ):
            return
        raise InvalidArgument(
            "lr_scheduler: it is made of another optimizer than the one given; give both, "
            "or a callable that makes it: lambda optimizer: LambdaLR(optimizer, ...)"
        )

    def _follow_scheduler(self) -> None:
        """Writes rates into groups of experts that the scheduler does not know."""
        groups = getattr(
            getattr(self.lr_scheduler, "optimizer", None), "param_groups", None
        )
        own = self.optimizer.param_groups
        if groups is not None and len(groups) < len(own):
            for group, source in zip(own[len(groups) :], self._split, strict=True):
                set_rate(group, own[source]["lr"])

    # ---- one step

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module. Local."""
        return self.module(*args, **kwargs)

    @in_call("backward()")
    def backward(
        self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True
    ) -> torch.Tensor:
        """Computes and collects the gradients of `loss`, a scalar. Collective.

        The loss is multiplied by the loss scale and, unless `scale_wrt_gas` is False,
        divided by gradient_accumulation_steps. Returns the loss so divided, without the
        scale. Exact averages begin meanwhile, so this may wait for other ranks. A loss
        of 16 bits is widened, with one note, because it has been rounded already.

        Raises InvalidArgument for another kind of loss. Raises FailedPrecondition after
        a backward of the loss itself, or naming a parameter or gradient that was
        replaced. Before the first exchange of a window, raises InvalidArgument or
        TypeError for a rate, a decay or a mask in param_groups. After either, with several ranks, this rank gives up: the others
        raise CommFailure with its text, and only destroy() is allowed. An exception of a
        hook or function is raised unchanged. If gradients have been sent by then, it is
        the cause of a CommFailure, and the other ranks learn of it.
        """
        loss = self._widened(loss)
        core, link = self._made, self._link
        with self._telling_others("backward()"):
            self._require_same_parameters(at_start=self._backwards == 0)
            if self._backwards == 0:  # before anything is exchanged
                self.optimizer.tell_rates(core)
        self._take_in_edits()
        factor = core.loss_factor if scale_wrt_gas else core.loss_scale
        core.begin_backward()
        link.begin()
        try:
            torch.autograd.backward(loss * factor, retain_graph=retain_graph)
            link.finish()
        except BaseException as error:
            link.cancel()
            self._cancel_backward(error)
            raise
        self._backwards += 1
        core.end_backward()
        self._monitoring.backward(loss)
        steps = self.gradient_accumulation_steps() if scale_wrt_gas else 1
        return loss.detach() / steps

    @in_call("step()")
    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """Updates parameters and sets gradients to 0, at a boundary. Collective there.

        If the step is applied, it advances the scheduler (by `lr_kwargs`). `report` has
        the results. Between boundaries it is local and does nothing. A KeyboardInterrupt
        comes when all of this is done.

        Raises FailedPrecondition without a backward since the last step, and if
        gradients or parameters were changed after it. Raises InvalidArgument or TypeError
        for a rate, a decay or a mask in param_groups. After either of the last two, with
        several ranks, this rank gives up, as in backward(). Raises NonFinite if the loss
        scale is at its minimum, and in an outer loop if parameters are not finite. Raises
        the errors of a client optimizer's step(). Raises CommFailure if a rank was lost;
        then only destroy() is allowed.
        """
        core = self._made
        note_daemon()
        with self._telling_others("step()"):
            self._require_own_gradients()
            if self._backwards:
                self._require_same_parameters(at_start=False)
            self.optimizer.tell_rates(core)
        if self._backwards:
            self._take_in_edits()
        with _interrupts_afterwards():
            native = core.step(self._memory.final_range())
            if self._client is not None:
                self._client.raise_error(self._comm)
            if not isinstance(native, EngineReport):
                native = EngineReport.of(native)
            self.report = native
            self.micro_steps += 1
            if native.at_boundary:
                self._at_boundary(native.applied, lr_kwargs or {})

    def _at_boundary(self, applied: bool, lr_kwargs: dict[str, Any]) -> None:
        self._backwards = 0
        self.global_steps += 1
        self.global_samples += self.train_batch_size()
        assert self.report is not None
        goes_under = self._config.comm.compressed_under_next_step
        differ = self.report.phase == "local" or (
            self.report.phase == "compressed"
            and goes_under
            and applied
            and self._comm.size > 1
        )
        self._written(is_behind=differ)
        # Schedulers of torch check that a step precedes theirs.
        for holder in (self.optimizer, getattr(self.lr_scheduler, "optimizer", None)):
            if holder is not None:
                setattr(holder, "_opt_called", True)  # noqa: B010
        if self._own_scheduler and applied:
            self.lr_scheduler.step(**lr_kwargs)
            self._follow_scheduler()
        self.optimizer.show_rates(self._config, self._native.steps)
        assert self.report is not None
        self._progress.after(self, self.report)
        self._monitoring.after(self.report, self.global_samples)

    @property
    def skipped_steps(self) -> int:
        """Number of steps that all ranks skipped because of a non-finite gradient."""
        return self._native.skipped_steps

    @in_call("mean()")
    def mean(self, value: float | torch.Tensor) -> float:
        """Returns the mean of the ranks' values, such as losses or accuracies.
        Collective.
        """
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise InvalidArgument(
                f"mean: value must be a tensor of one element, got {value.numel()}"
            )
        return self._made.mean(float(value))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing, because step() has set gradients to 0; for scripts that call
        it. Local.

        Raises FailedPrecondition inside a window of accumulation.
        """
        if self._backwards:
            raise FailedPrecondition(
                f"zero_grad: the gradients of {self._backwards} backward(s) would be "
                "lost; engine.step() sets gradients to 0: remove that call"
            )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Sums the backwards within it; step() does nothing meanwhile. Local."""
        self.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            self.set_gradient_accumulation_boundary(None)

    def set_gradient_accumulation_boundary(self, is_boundary: bool | None) -> None:
        """Sets whether the next step is at a boundary, until the next call. Local,
        before backward. With None, gradient_accumulation_steps decides.
        """
        self._made.set_accumulation_boundary(is_boundary)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Makes parameters equal on all ranks within it, and buffers as configured.
        Collective. Within it autograd records nothing, and there is no step.

        Between local steps of 0/1 Adam this is an exchange beside those of its
        schedule. With compressed_under_next_step of 1-bit Adam, parameters become the
        common ones. Training continues from the result, so its bits differ from those
        without it. The module's eval() changes no parameters.
        """
        core = self._made
        with in_call("evaluation()"):
            with self._telling_others("evaluation()"):
                self._memory.make_writable()
            self._take_in_edits()
            core.begin_evaluation()
        try:
            with in_call("evaluation()"):
                self._written(is_behind=False)
                self._buffers_of_module.make_equal(self._config.buffers)
            with torch.no_grad():
                yield
        finally:
            core.end_evaluation()

    # ---- data, end

    def deepspeed_io(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = None,
        route: str = "train",
        pin_memory: bool = False,
        data_sampler: Sampler[Any] | None = None,
        collate_fn: Callable[..., Any] | None = None,
        num_local_io_workers: int = 0,
    ) -> DataLoader[Any]:
        """Returns this rank's share of `dataset` in batches. Local.

        Batches have train_micro_batch_size_per_gpu samples unless `batch_size` is
        given. They are drawn with seed 0, alike in every epoch, unless
        `loader.sampler.set_epoch()` is called. With another route than "train" they are
        not shuffled. All ranks have as many. `data_sampler` chooses them instead.

        Raises InvalidArgument for a dataset or size that cannot be divided, such as
        fewer samples than ranks.
        """
        if batch_size is None:
            batch_size = self.train_micro_batch_size_per_gpu()
        num_ranks = self.world_size if data_sampler is None else 0
        require_shareable(dataset, batch_size, num_ranks)
        if data_sampler is None:
            data_sampler = DistributedSampler(
                dataset,
                num_replicas=self.world_size,
                rank=self.global_rank,
                shuffle=route == "train",
                seed=0,
                drop_last=True,
            )
        return DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=data_sampler,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            num_workers=num_local_io_workers,
        )

    def destroy(self) -> None:
        """Ends communication. Local, idempotent. The module keeps its parameters."""
        if os.getpid() == self._process:
            self._link.remove()
            self._monitoring.close()
            self._close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "Engine cannot be copied or pickled, it holds connections; save_checkpoint() "
            "writes its state, and module.state_dict() has the weights"
        )

    # ---- checks

    def _telling_others(self, call: str) -> AbstractContextManager[None]:
        return telling_others(self._told, call)

    def _widened(self, loss: torch.Tensor) -> torch.Tensor:
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"loss must be a tensor, got {type(loss).__name__}")
        if loss.numel() != 1 or not loss.is_floating_point():
            raise InvalidArgument(
                f"loss must be a scalar of floating point, got {loss.dtype} of "
                f"{loss.numel()} elements"
            )
        if not loss.requires_grad:
            raise InvalidArgument("loss must be computed from the module's parameters")
        if loss.dtype in (torch.float16, torch.bfloat16):
            self._progress.note_narrow_loss(loss.dtype)
            return loss.float()
        return loss

    def _cancel_backward(self, error: BaseException) -> None:
        self._backwards = 0
        self._monitoring.forget()
        try:
            self._made.cancel_backward(reason_of(error))
        except CommFailure as lost:
            if not isinstance(error, CommFailure):
                raise lost from error


@contextmanager
def _interrupts_afterwards() -> Iterator[None]:
    """Calls Python's handler of SIGINT, if there is one, at the end of the block."""
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(handler):
        yield
        return
    caught: list[tuple[int, Any]] = []
    note = lambda *given: caught.append(given)
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, handler)
        if caught:
            handler(*caught[-1])

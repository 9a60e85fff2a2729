# SPDX-License-Identifier: Apache-2.0
"""The Engine: a module, its optimizer, its schedule and its communication in one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from .. import _core, _log
from .._agreement import agreed
from .._checkpoints import LoadReport, Saved, load_options
from ..comm import communicator_for
from ..comm.calls import in_call
from ..comm.host_group import HostGroup
from ..comm.lifetime import note_daemon, reason_of
from ..config import Source, named_backend
from ..errors import CommFailure, FailedPrecondition, InvalidArgument
from ..optim import _attributes
from ..optim._edits import set_rate
from ..optim._experts import Experts
from ..optim._notices import RunTotals
from ..report import EngineReport
from ._build import Plan, leaders_for, make_parts, make_plan, require_shareable
from ._counters import NAMES, Counts
from ._module_view import ModuleView
from ._optimizer import ConfigSchedule, EngineOptimizer
from ._progress import Monitoring, Progress
from ._saving import Checkpoints, require_no_function
from ._training import Training
from ._unavailable import set_refusals
from ._values import Values


class Engine(ModuleView):
    """Trains a module as a configuration describes. initialize() makes it.

        loss = engine(batch)
        engine.backward(loss)
        engine.step()

    Gradients are averaged while backward computes further ones. The module's trainable
    parameters become views of flat memory in the configuration's precision. If that
    precision has 16 bits and all parameters are fp32, the engine also converts frozen
    parameters and persistent fp32 buffers. Parameters on a device other than the CPU
    stay there, and flat memory on the host holds copies. step() sets gradients to 0.
    Attributes that the engine lacks are looked up in `module`.

    The constructor, backward(), step() at boundaries, mean(), evaluation(),
    save_checkpoint() and load_checkpoint() are collective. load_module_state_dict() and
    functions such as full_parameter() are collective with ZeRO, lean 1-bit Adam or a
    leader per host.
    """

    optimizer: EngineOptimizer
    lr_scheduler: Any
    training_dataloader: DataLoader[Any] | None
    device: torch.device
    global_rank: int
    local_rank: int
    world_size: int
    dp_world_size: int
    global_steps: int
    """Number of completed windows of accumulation, including those whose step was
    skipped.
    """
    micro_steps: int
    """Calls of step()."""
    global_samples: int

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
        owns_comm = not isinstance(process_group, _core.Communicator)
        backend = named_backend(config)
        self._comm = comm = communicator_for(process_group, backend=backend)
        experts = Experts()
        hosts: HostGroup | None = None
        together: _core.Communicator | None = None
        model_parallel_group = _attributes.model_parallel_group(mpu)

        def prepare() -> Plan:
            nonlocal hosts
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
            self._monitoring = Monitoring(plan.monitors)
            self.optimizer = EngineOptimizer(
                plan.config, plan.groups, plan.client, plan.places
            )
            agreed(comm, lambda: self._set_scheduler(plan, lr_scheduler, optimizer))
            experts.join(comm, plan.groups)
            if model_parallel_group is None:
                hosts = leaders_for(comm, plan)
            else:
                agreed(comm, lambda: _attributes.require_model_parallel(plan.config))
            return plan

        try:
            # Some of these objects take part in exchanges, so every rank must make
            # them.
            comm.require_same(
                "optimizer, lr_scheduler and the model-parallel group",
                f"optimizer is None: {optimizer is None}\n"
                f"lr_scheduler is None: {lr_scheduler is None}\n"
                f"mpu has no model-parallel group: {model_parallel_group is None}\n",
            )
            if model_parallel_group is not None:
                together = experts.of(model_parallel_group)
            # An error on the ranks of one part of a model is raised on the ranks of all
            # parts.
            plan = agreed(together, prepare)
            parts = agreed(
                together, lambda: make_parts(comm, model, plan, experts, hosts)
            )
            if model_parallel_group is not None:
                assert isinstance(parts[0], _core.Engine) and together is not None
                alike = _attributes.counted_elsewhere(mpu, experts, plan.places)
                parts[0].set_model_parallel(together, alike)
        except BaseException:
            if hosts is not None:
                hosts.close()
            for owned in (*experts.owned, *((comm,) if owns_comm else ())):
                owned.close()
            raise
        self.module = model
        closes = (*experts.owned, *((comm,) if owns_comm else ()))
        self._training = training = Training(
            model, plan, comm, together, hosts, experts, closes, parts
        )
        self._values = Values(training)
        self.optimizer.begin(self._values, self.backward, self._has_own_schedule)
        self._progress = Progress(comm, plan.config, training.native)
        self._checkpoints = Checkpoints(training, self.optimizer, self._progress)
        self._batch = plan.config.batch(comm.size)
        self.global_steps = 0
        self.micro_steps = 0
        self.global_samples = 0
        self.global_rank = comm.rank
        self.world_size = self.dp_world_size = comm.size
        from_launcher = os.environ.get("LOCAL_RANK", str(self.global_rank))
        given = -1 if local_rank is None else local_rank
        self.local_rank = given if given >= 0 else int(from_launcher)
        self.device = training.memory.parameters[0].device
        self.training_dataloader = None
        if training_data is not None:
            self.training_dataloader = self.deepspeed_io(
                training_data, collate_fn=collate_fn
            )
        _log.forward(comm)

    def _set_scheduler(self, plan: Plan, lr_scheduler: Any, given: Any) -> None:
        self._has_own_schedule = lr_scheduler is not None
        self._split = plan.split
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
        elif not plan.config.schedule.is_constant:
            self.lr_scheduler = ConfigSchedule(self.optimizer)
            self.optimizer.show_rates(plan.config, 0)

    def _require_known(self, of_scheduler: Any, given: Any) -> None:
        groups = getattr(of_scheduler, "param_groups", None)
        own = self.optimizer.param_groups
        # A scheduler made for the given optimizer does not know the groups of experts
        # that were split off from the optimizer's groups.
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
        divided by gradient_accumulation_steps. Returns the loss after this division,
        without the loss scale. Exact averaging begins during the backward, which may
        therefore wait for other ranks. A 16-bit loss is converted to fp32, and the log
        notes the conversion once.

        Raises InvalidArgument for another kind of loss. Raises FailedPrecondition if
        loss.backward() was called, or if a parameter or gradient, which the error
        names, was replaced. Before the first exchange of a window, raises
        InvalidArgument or TypeError for an invalid rate, decay or mask in param_groups.
        With several ranks, this rank then gives up: the others raise CommFailure with
        the error's text, and only destroy() is allowed. An exception from a hook or an
        autograd function is raised unchanged. If gradients were sent before the
        exception, it becomes the cause of a CommFailure, and the other ranks raise a
        CommFailure as well.
        """
        loss = self._widened(loss)
        training = self._training
        core, link = training.made, training.link
        with training.telling_others("backward()"):
            training.require_same_parameters(at_start=training.backwards == 0)
            if training.backwards == 0:  # before anything is exchanged
                self.optimizer.tell_rates(core)
        training.take_in_edits()
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
        training.backwards += 1
        core.end_backward()
        self._monitoring.backward(loss)
        steps = self.gradient_accumulation_steps() if scale_wrt_gas else 1
        return loss.detach() / steps

    @in_call("step()")
    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """Updates parameters and sets gradients to 0, at a boundary. Collective there.

        An applied step advances the scheduler (with `lr_kwargs`). `report` holds the
        results. Between boundaries the call is local and does nothing. A
        KeyboardInterrupt is delayed until the step is complete.

        Raises FailedPrecondition if there was no backward since the last step, or if
        gradients or parameters were changed after the backward. Raises InvalidArgument
        or TypeError for an invalid rate, decay or mask in param_groups. With several
        ranks, this rank gives up after such an error, as in backward(), unless only the
        backward is missing. Raises NonFinite if the loss scale is at its minimum, and
        in an outer loop if parameters are not finite. Raises the errors of a client
        optimizer's step(). Raises CommFailure if a rank was lost; then only destroy()
        is allowed.
        """
        training = self._training
        core = training.made
        note_daemon()
        with training.telling_others("step()"):
            training.require_own_gradients()
            if training.backwards:
                training.require_same_parameters(at_start=False)
            self.optimizer.tell_rates(core)
        if training.backwards:
            training.take_in_edits()
        with _interrupts_afterwards():
            report = core.step(training.memory.final_range())
            if training.client is not None:
                training.client.raise_error(self._comm)
            if not isinstance(report, EngineReport):
                report = EngineReport.of(report)
            training.report = report
            self.micro_steps += 1
            if report.at_boundary:
                self._at_boundary(report, lr_kwargs or {})

    def _at_boundary(self, report: EngineReport, lr_kwargs: dict[str, Any]) -> None:
        training = self._training
        training.backwards = 0
        self.global_steps += 1
        self.global_samples += self.train_batch_size()
        goes_under = training.config.comm.compressed_under_next_step
        differ = report.phase == "local" or (
            report.phase == "compressed"
            and goes_under
            and report.applied
            and self._comm.size > 1
        )
        training.written(is_behind=differ)
        # torch's schedulers check that a step of the optimizer precedes their own step.
        for holder in (self.optimizer, getattr(self.lr_scheduler, "optimizer", None)):
            if holder is not None:
                setattr(holder, "_opt_called", True)  # noqa: B010
        if self._has_own_schedule and report.applied:
            self.lr_scheduler.step(**lr_kwargs)
            self._follow_scheduler()
        self.optimizer.show_rates(training.config, training.native.steps)
        self._progress.after(report, self.global_steps, self.get_lr(), self.get_mom())
        self._monitoring.after(report, self.global_samples)

    @property
    def report(self) -> EngineReport | None:
        """Results of the last step(); None before the first."""
        return self._training.report

    @property
    def skipped_steps(self) -> int:
        """Number of steps that all ranks skipped because of a non-finite gradient."""
        return self._training.native.skipped_steps

    @in_call("mean()")
    def mean(self, value: float | torch.Tensor) -> float:
        """Returns the mean of the ranks' values, such as losses or accuracies.
        Collective.
        """
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise InvalidArgument(
                f"mean: value must be a tensor of one element, got {value.numel()}"
            )
        return self._training.made.mean(float(value))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing, because step() sets gradients to 0. Scripts may call it. Local.

        Raises FailedPrecondition inside a window of accumulation.
        """
        self._training.require_no_window("zero_grad")

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Adds up the backwards in its block, in which step() does nothing. Local."""
        self.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            self.set_gradient_accumulation_boundary(None)

    def set_gradient_accumulation_boundary(self, is_boundary: bool | None) -> None:
        """Sets whether the next step is at a boundary, until the next call. Local; call
        it before backward(). With None, gradient_accumulation_steps decides.
        """
        self._training.made.set_accumulation_boundary(is_boundary)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Makes parameters equal on all ranks in its block, and buffers as configured.
        Collective. In the block autograd records nothing, and steps are refused.

        Between local steps of 0/1 Adam, the block makes an additional exchange. With
        compressed_under_next_step of 1-bit Adam, parameters take the values that all
        ranks share. Training continues from these values, so results differ from a run
        without evaluation. The module's eval() changes no parameters.
        """
        training = self._training
        core = training.made
        with in_call("evaluation()"):
            with training.telling_others("evaluation()"):
                training.memory.make_writable()
            training.take_in_edits()
            core.begin_evaluation()
        try:
            with in_call("evaluation()"):
                training.written(is_behind=False)
                training.buffers.make_equal(training.config.buffers)
            with torch.no_grad():
                yield
        finally:
            core.end_evaluation()

    # ---- weights and checkpoints

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Loads weights like load_module_state_dict(). Raises FailedPrecondition for
        `assign`.
        """
        if assign:
            raise FailedPrecondition(
                "load_state_dict: assign=True would replace the parameters that the "
                "engine trains; leave it out"
            )
        return self.load_module_state_dict(state_dict, strict)

    @in_call("load_module_state_dict()")
    def load_module_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        custom_load_fn: Any = None,
        fetch_z3_params: bool = False,
    ) -> Any:
        """Loads weights into the module and into masters; moments do not change. All
        ranks must pass the same values between two windows. Collective with ZeRO,
        otherwise local.

        Raises FailedPrecondition inside a window of accumulation, and Unavailable for
        `custom_load_fn`.
        """
        require_no_function(custom_load_fn)
        if self._training.backwards:
            raise FailedPrecondition(
                "load_module_state_dict: inside a window of accumulation; call step() first"
            )

        def take() -> Any:
            return self.module.load_state_dict(state_dict, strict)

        is_collective = self._training.is_sharded
        result = agreed(self._comm, take) if is_collective else take()
        self._training.read_masters()
        return result

    @in_call("save_checkpoint()")
    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: str | None = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Saves a checkpoint under a name. Returns True once it is complete.
        Collective.

        SAVE_DIR/<tag>/ is a directory with one checkpoint of Thinwire, step-<steps>. A
        later save with the same tag replaces it. With `save_latest`, the file
        SAVE_DIR/latest contains the tag, as in DeepSpeed. Any number of ranks can load
        the checkpoint. All ranks of a model-parallel group pass the same SAVE_DIR, and
        its rank N saves a part of the model in SAVE_DIR/<tag>/mp_rank_NN/.

        tag: a file name, the same on all ranks. None means global_step<N>.
        client_state: values that JSON can hold; tuples become lists. The values of rank
          0 are saved.
        exclude_frozen_parameters: whether to omit frozen parameters and buffers.

        Raises KeyError for a name that DeepSpeed reserves in its checkpoints. Raises
        InvalidArgument for values that JSON cannot hold or tags that differ between
        ranks. Raises Unavailable if a file cannot be written, and FailedPrecondition
        inside a window of accumulation. All ranks raise together.
        """
        tag = f"global_step{self.global_steps}" if tag is None else str(tag)
        self._checkpoints.save_tagged(
            save_dir,
            tag,
            client_state or {},
            save_latest,
            not exclude_frozen_parameters,
            self._own_values(),
        )
        return True

    @in_call("load_checkpoint()")
    def load_checkpoint(
        self,
        load_dir: str | os.PathLike[str],
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Callable[..., Any] | None = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Resumes from a checkpoint that save_checkpoint() wrote on any number of
        ranks. Collective.

        Returns the checkpoint's path and client_state. If `tag` is None and LOAD_DIR
        contains no file `latest`, warns and returns (None, None).

        load_module_strict: if False, some parameters, but not all, may be missing in
          the checkpoint or in the model. One warning names them.
        load_optimizer_states: if False, loads only weights and the saved masters.
          Moments, the number of applied steps and the configuration's schedule begin
          anew.
        load_module_only: if True, acts like load_optimizer_states=False, and does not
          change the engine's counters.

        Raises the errors of thinwire.load(), Unavailable for `custom_load_fn`, and
        InvalidArgument for tags that differ from rank to rank. A directory that
        DeepSpeed wrote is refused, and the error names the command that converts it.
        """
        root = self._checkpoints.find_tagged(
            load_dir, tag, bool(load_module_strict), custom_load_fn
        )
        if root is None:
            return None, None
        only_weights = load_module_only or not load_optimizer_states
        options = load_options(
            {"weights_only": only_weights, "strict": bool(load_module_strict)}
        )
        scheduler = self._own_values()[1] if load_lr_scheduler_states else None
        report, state, counts = self._checkpoints.load_tagged(
            root, options, not load_module_only, scheduler
        )
        self._count_on(counts)
        return report.path, state

    @in_call("save_16bit_model()")
    def save_16bit_model(
        self,
        save_dir: str | os.PathLike[str],
        save_filename: str = "pytorch_model.bin",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Writes the module's state_dict() with torch.save(), in the parameters'
        precision. Collective; rank 0 writes. Rank N of a model-parallel group writes
        its part to SAVE_DIR/mp_rank_NN/. Returns True. Raises Unavailable on all ranks
        if rank 0 cannot write the file.
        """
        self._checkpoints.save_16bit(
            save_dir,
            save_filename,
            lambda: self.module_state_dict(
                exclude_frozen_parameters=exclude_frozen_parameters
            ),
        )
        return True

    @in_call("wait_for_save()")
    def wait_for_save(self) -> None:
        """Blocks until an asynchronous save is done, and raises its error. Collective."""
        self._training.made.wait_for_save()

    def _own_values(self) -> tuple[Counts, Any]:
        """Returns the counts, and the program's scheduler if there is one, for a
        save.
        """
        counts = {name: getattr(self, name) for name in NAMES}
        return counts, self.lr_scheduler if self._has_own_schedule else None

    def _count_on(self, counts: Counts) -> None:
        for name, value in counts.items():
            setattr(self, name, value)

    def _save(
        self,
        root: str,
        extra: tuple[dict[str, Any], dict[str, Any]],
        options: _core.SaveOptions,
    ) -> Saved:
        """Implements thinwire.save()."""
        return self._checkpoints.save(root, extra, options, self._own_values())

    def _resume(self, path: str, options: _core.LoadOptions) -> LoadReport | None:
        """Implements thinwire.resume()."""
        counts = not options.weights_only
        loaded = self._checkpoints.load(path, options, counts, self._own_values()[1])
        if loaded is None:
            return None
        self._count_on(loaded[2])
        return loaded[0]

    # ---- whole values

    def full_parameter(self, parameter: torch.Tensor | str) -> torch.Tensor:
        """Returns a copy of a parameter's fp32 master, or of the parameter if it has
        none.

        The copy has the parameter's shape. `parameter` is the tensor or its name.
        Collective with ZeRO, lean 1-bit Adam and a leader per host, otherwise local. Raises
        InvalidArgument if the engine does not train it.
        """
        return self._values.full_parameter(parameter)

    def set_full_parameter(
        self, parameter: torch.Tensor | str, value: torch.Tensor
    ) -> None:
        """Sets the fp32 master to `value`, and the parameter to `value` in its own
        dtype.

        Collective with ZeRO, lean 1-bit Adam and a leader per host, otherwise local. All
        ranks pass the same value. Local steps since the last exchange are discarded.

        Raises InvalidArgument for a value that is no tensor of the parameter's shape.
        """
        self._values.set_full_parameter(parameter, value)

    def full_gradient(self, parameter: torch.Tensor | str) -> torch.Tensor:
        """Returns the averaged gradient in fp32, without the loss scale and not
        clipped.

        Collective; only with ZeRO. Call it between a window's last backward and step().
        No backward may follow before that step().

        Raises FailedPrecondition at other times and without ZeRO.
        """
        return self._values.full_gradient(parameter)

    def set_full_gradient(
        self, parameter: torch.Tensor | str, value: torch.Tensor
    ) -> None:
        """Sets the gradient that the next step() uses, under the conditions of
        full_gradient(). All ranks pass the same value.
        """
        self._values.set_full_gradient(parameter, value)

    def full_state(self, parameter: torch.Tensor | str, key: str) -> torch.Tensor:
        """Returns a copy of the optimizer's state `key` for one parameter.

        The copy is fp32 and has the parameter's shape. `key` is "exp_avg" or
        "exp_avg_sq". A torch optimizer that makes its own steps uses other keys.
        Collective with ZeRO and a leader per host, otherwise local.

        Raises InvalidArgument for a key that the optimizer's present stage lacks: after
        its freeze 1-bit Adam has no exp_avg_sq.
        """
        return self._values.full_state(parameter, key)

    def set_full_state(
        self, parameter: torch.Tensor | str, key: str, value: torch.Tensor
    ) -> None:
        """Sets the optimizer's state `key` for one parameter. Only with ZeRO, and
        collective: all ranks pass the same value.

        Raises InvalidArgument like set_full_parameter(), and for a value that is not
        finite or a negative exp_avg_sq.
        """
        self._values.set_full_state(parameter, key, value)

    def get_lamb_coeffs(self) -> list[float]:
        """Returns the factors by which the last step multiplied the learning rates.
        Local.

        The list holds one factor per parameter, in the engine's order. The factors are
        trust ratios or, in compressed steps of 1-bit LAMB, scaling coefficients. Before
        the first step they are 0. The list is empty unless the optimizer is LAMB or
        1-bit LAMB.
        """
        return self._training.made.lamb_coeffs()

    def memory_use(self) -> dict[str, int]:
        """Returns the bytes that this rank holds. Local.

        The keys are parameters, gradients, states, buckets, other, and peak, the
        largest sum of them so far. All memory that this thread allocated counts, even
        for other engines. Activations do not count.
        """
        use = _core.memory_use()
        for kind, size in self._training.link.use.items():
            use[kind] += size
        return use

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
        given. Samples are shuffled with seed 0, in the same order in every epoch unless
        `loader.sampler.set_epoch()` is called. With a route other than "train" they are
        not shuffled. All ranks have the same number of batches. If `data_sampler` is
        given, it chooses the samples.

        Raises InvalidArgument for a dataset or size that cannot be divided, such as a
        dataset with fewer samples than ranks.
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
        training = self._training
        if os.getpid() == training.process:
            training.link.remove()
            self._monitoring.close()
            training.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "Engine cannot be copied or pickled, it holds connections; save_checkpoint() "
            "writes its state, and module.state_dict() has the weights"
        )

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
        self._training.backwards = 0
        self._monitoring.forget()
        try:
            self._training.made.cancel_backward(reason_of(error))
        except CommFailure as lost:
            if not isinstance(error, CommFailure):
                raise lost from error

    # ---- values under DeepSpeed's names; all these calls are local

    def gradient_accumulation_steps(self) -> int:
        """Returns the number of backwards per step."""
        return self._batch[2]

    def train_batch_size(self) -> int:
        """Returns the number of samples per step on all ranks, or 0 if it is not
        configured.
        """
        return self._batch[0]

    def train_micro_batch_size_per_gpu(self) -> int:
        """Returns the number of samples per backward on one rank, or 0 if it is not
        configured.
        """
        return self._batch[1]

    def get_batch_info(self) -> tuple[int, int, int]:
        """Returns train_batch_size, train_micro_batch_size_per_gpu and
        gradient_accumulation_steps.
        """
        return self._batch

    def get_lr(self) -> list[float]:
        """Returns the learning rates of the next step, one per group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        """Returns the betas, one pair per group. For an optimizer without betas,
        returns its momentum, or 0.
        """
        return [
            tuple(group["betas"]) if "betas" in group else group.get("momentum", 0.0)
            for group in self.optimizer.param_groups
        ]

    @property
    def totals(self) -> RunTotals:
        """Traffic of this rank in this run, and what compression has saved."""
        return self._progress.notices.totals

    def get_global_grad_norm(self) -> float | None:
        """Returns the L2 norm of the last step's averaged gradient before clipping.
        Returns None before the first step. In compressed steps it is an estimate; see
        `report`.
        """
        return None if self.report is None else self.report.grad_norm

    def loss_scale(self) -> float:
        """Returns the factor on the next loss; 1 unless parameters are fp16."""
        return self._training.native.loss_scale

    @property
    def cur_scale(self) -> float:
        """Returns loss_scale()."""
        return self._training.native.loss_scale

    def was_step_applied(self) -> bool:
        """Returns whether the last step() was at a boundary and not skipped."""
        return self.report is not None and self.report.applied

    def is_gradient_accumulation_boundary(self) -> bool:
        """Returns whether step() after the latest backward is at a boundary. Before a
        window, the answer applies to the window's first backward.
        """
        return self._training.native.is_boundary

    def zero_optimization(self) -> bool:
        """Returns whether states are sharded."""
        return self._training.is_sharded

    def zero_optimization_stage(self) -> int:
        """Returns the stage: 0, 1 or 2."""
        return self._training.config.zero.stage

    def zero_cpu_offload(self) -> bool:
        """Returns whether masters and states are updated in host memory."""
        asked = self._training.config.zero.offload_optimizer != _core.OffloadDevice.none
        return asked or self.device.type != "cpu"

    def fp16_enabled(self) -> bool:
        """Returns whether parameters are float16."""
        return self._training.config.precision.dtype == _core.DType.float16

    def bfloat16_enabled(self) -> bool:
        """Returns whether parameters are bfloat16."""
        return self._training.config.precision.dtype == _core.DType.bfloat16

    def gradient_clipping(self) -> float:
        """Returns the global norm to which gradients are clipped; 0 for no clipping."""
        return self._training.config.gradient_clipping

    def dynamic_loss_scale(self) -> bool:
        """Returns whether the loss scale changes from step to step."""
        return self._training.has_dynamic_scale

    def steps_per_print(self) -> int:
        """Returns the steps per line of the log; 0 for no lines."""
        return self._training.config.steps_per_print

    def optimizer_name(self) -> str:
        """Returns a name such as "adam" or "onebit_adam". For a client optimizer,
        returns the name of its class.
        """
        client = self._training.client
        if client is not None:
            return type(client.optimizer).__name__
        return self._training.config.optimizer_name()


set_refusals(Engine)


@contextmanager
def _interrupts_afterwards() -> Iterator[None]:
    """Delays SIGINT to the end of the block, if Python has a handler of SIGINT."""
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

# SPDX-License-Identifier: Apache-2.0
"""The native module: the C++ library, with no logic of its own.

Arrays are one-dimensional, contiguous and on the CPU: anything with DLPack or the
buffer protocol. A tuple of two arrays counts as one, the first of 16 bits and the second
of fp32, where parameters and gradients are taken. Calls that can wait for other ranks release the GIL. Failures of the
library are raised as the classes of thinwire.errors.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol, TypeAlias

Array: TypeAlias = Any  # torch.Tensor, array.array, memoryview, numpy.ndarray

__version__: str

# ---- what the machine has

compiler: str

def cpu_target() -> str: ...
def cpu_targets() -> list[str]:
    """Those that this processor can run."""

def processor() -> str: ...
def prefetch() -> tuple[bool, str]:
    """Whether kernels prefetch here, and why."""

def backends() -> list[tuple[str, str, str]]:
    """(name, version, why it is unavailable or "") of the transports inside."""

def num_threads() -> int:
    """Of a rank that asks for 0: THINWIRE_NUM_THREADS, else 1."""

def bucket_elements(chosen: int, elements: int, ranks: int, bits: int) -> int:
    """`chosen`, or for 0 the rule: compress/bucket_rule.h, every rank a host of its own."""

def take_log() -> list[tuple[str, str]]:
    """What the library has logged since the last call: (level, text)."""

def memory_use() -> dict[str, int]:
    """Bytes that this thread's arrays take: parameters, gradients, states, buckets, other,
    and peak."""

def parse_duration(text: str) -> float:
    """Seconds in "5s", "10min": what THINWIRE_TIMEOUT may say."""

def checksum(values: Array) -> int:
    """XXH3-64 of the bytes."""

class DType(Enum):
    float32 = ...
    float16 = ...
    bfloat16 = ...
    float64 = ...
    int32 = ...
    int64 = ...
    uint8 = ...

# ---- comm

class Transport(Protocol):
    """What moves bytes for over(). exchange() is called by one thread at a time;
    memory views are valid during the call."""

    name: str
    rank: int
    size: int

    def exchange(
        self,
        sends: list[tuple[int, memoryview]],
        receives: list[tuple[int, memoryview]],
        operation: str,
        sequence: int,
        seconds: float,
    ) -> None: ...
    def split(
        self, color: int, key: int, operation: str, sequence: int, seconds: float
    ) -> Transport | None: ...
    def give_up(self, reason: str) -> None: ...

class Communicator:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def backend(self) -> str: ...
    @property
    def timeout(self) -> float: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def collectives(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def barrier(self) -> None: ...
    def broadcast(self, values: Array, root: int) -> None: ...
    def all_reduce(self, values: Array, mean: bool = False) -> None: ...
    def all_gather(self, values: Array, output: Array) -> None: ...
    def all_to_all(self, values: Array, output: Array) -> None: ...
    def require_same(self, what: str, text: str) -> None:
        """Collective: comm/agreement.h."""
    def gather_texts(self, text: str) -> list[str]: ...
    def split(self, color: int, key: int = 0) -> Communicator | None: ...
    def give_up(self, reason: str) -> None: ...
    def close(self) -> None:
        """Idempotent; whatever still uses the communicator is closed by its owner first."""

def over(transport: Transport, timeout: float = 600.0) -> Communicator: ...
def local_group(size: int, timeout: float = 600.0) -> list[Communicator]: ...
def from_environment() -> Communicator:
    """What THINWIRE_COMM or the launcher says; MPI where this build has it."""

# ---- optimizers' options: the structs of include/thinwire/optim, field by field

class Layout:
    """ParameterLayout: (name, shape, group) in the order of the flat array."""

    def __init__(
        self, parameters: Sequence[tuple[str, Sequence[int], int]], num_groups: int = 0
    ) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def num_groups(self) -> int: ...
    @property
    def offsets(self) -> list[int]: ...
    @property
    def sizes(self) -> list[int]: ...
    @property
    def names(self) -> list[str]: ...
    def describe(self) -> str: ...
    def hash(self) -> int: ...

class Scale(Enum):
    rms = ...
    l1 = ...

class Semantics(Enum):
    corrected = ...
    deepspeed = ...

AUTO_FREEZE: int

class AdamGroup:
    """Unset fields are None. Also LambGroup, MaskedGroup (ZeroOneAdamOptions.groups),
    OnebitAdamGroup, OnebitLambGroup: bound with the fields of their C++ structs."""

    def __init__(self) -> None: ...
    learning_rate: float | None
    beta1: float | None
    beta2: float | None
    epsilon: float | None
    weight_decay: float | None

class LambGroup(AdamGroup):
    max_coeff: float | None
    min_coeff: float | None

class MaskedGroup(AdamGroup):
    exp_avg_mask: list[float]
    """Assignable from any Array."""

class OnebitAdamGroup(MaskedGroup):
    non_freeze: bool

class OnebitLambGroup(MaskedGroup):
    max_coeff: float | None
    min_coeff: float | None

class _AdamFields:
    """What all options have. Defaults are those of the C++ structs; Config has
    fields of its own for their `exchange`. copy.copy and copy.deepcopy work."""

    def __init__(self) -> None: ...
    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    bias_correction: bool
    epsilon_inside_sqrt: bool

class AdamOptions(_AdamFields):
    groups: list[AdamGroup]
    """Copied when read and when set, as in all options."""
    decoupled_decay: bool
    state_dtype: DType

class LambOptions(_AdamFields):
    groups: list[LambGroup]
    max_coeff: float
    min_coeff: float

class _LowBitFields(_AdamFields):
    denom_floor: float
    scale: Scale
    residual_dtype: DType

class _FreezeFields(_LowBitFields):
    def planned_freeze_step(self) -> int:
        """freeze_step where it is given, else by the rule of optim/run_length.h."""
    freeze_step: int | None
    lr_warmup_steps: int | None
    total_steps: int | None
    min_freeze_step: int
    max_freeze_step: int | None
    freeze_ratio: float

class OnebitAdamOptions(_FreezeFields):
    groups: list[OnebitAdamGroup]
    amsgrad: bool
    variance_refresh: int

class OnebitLambOptions(_FreezeFields):
    groups: list[OnebitLambGroup]
    amsgrad: bool
    max_coeff: float
    min_coeff: float
    coeff_beta: float
    factor_max: float
    factor_min: float
    factor_threshold: float

class Exchanged(Enum):
    momentum = ...
    gradient = ...

class ZeroOneStages:
    """optim::ZeroOneStages."""

    @property
    def var_freeze_step(self) -> int: ...
    @property
    def var_update_scaler(self) -> int: ...
    @property
    def local_step_scaler(self) -> int: ...
    @property
    def local_step_clipper(self) -> int: ...

class ZeroOneAdamOptions(_LowBitFields):
    def stages(self) -> ZeroOneStages:
        """The four where they are given, else by the rule of optim/run_length.h."""
    groups: list[MaskedGroup]
    amsgrad: bool
    total_steps: int | None
    var_freeze_step: int | None
    var_update_scaler: int | None
    local_step_scaler: int | None
    local_step_clipper: int | None
    exchanged: Exchanged

class LeanOnebitAdamOptions(_FreezeFields):
    groups: list[MaskedGroup]
    denominator_bits: int

Options: TypeAlias = (
    AdamOptions
    | LambOptions
    | OnebitAdamOptions
    | OnebitLambOptions
    | ZeroOneAdamOptions
    | LeanOnebitAdamOptions
)

# ---- config

class KeyNote:
    path: str
    is_supported: bool
    note: str

class AtMinimum(Enum):
    stop = ...
    hold = ...

class LossScalerOptions:
    def __init__(self) -> None: ...
    initial_scale: float
    dynamic: bool
    window: int
    hysteresis: int
    consecutive_hysteresis: bool
    min_scale: float
    max_scale: float
    at_minimum: AtMinimum

class PrecisionConfig:
    def __init__(self) -> None: ...
    dtype: DType
    loss_scale: LossScalerOptions
    check_grad_overflow: bool
    master_dtype: DType
    state_dtype: DType

class OffloadDevice(Enum):
    none = ...
    cpu = ...

class AfterSkip(Enum):
    auto = ...
    keep = ...
    clear = ...

class WireOptions:
    def __init__(self) -> None: ...
    bits_up: int
    bits_down: int
    residual_dtype: DType | None
    after_skip: AfterSkip

class ZeroConfig:
    def __init__(self) -> None: ...
    stage: int
    reduce_scatter: bool
    reduce_bucket_size: int
    allgather_bucket_size: int
    ignore_unused_parameters: bool
    round_robin_gradients: bool
    offload_optimizer: OffloadDevice
    wire: WireOptions

class Hierarchy(Enum):
    auto = ...
    flat = ...
    by_host = ...

class CommBackend(Enum):
    unset = ...
    nccl = ...
    hccl = ...
    mpi = ...
    gloo = ...

class CommConfig:
    def __init__(self) -> None: ...
    backend: CommBackend
    hierarchy: Hierarchy
    ranks_per_host: int
    bucket_elements: int
    num_threads: int
    verify_every: int
    overlap: bool
    compressed_during_backward: bool

class CheckpointConfig:
    def __init__(self) -> None: ...
    root: str
    every_steps: int
    every: float
    """Seconds; kept in milliseconds."""
    keep_last: int
    keep_every: int
    asynchronous: bool

class Fallback(Enum):
    off = ...
    warn = ...
    hold = ...

class TelemetryConfig:
    def __init__(self) -> None: ...
    path: str
    every: int
    every_rank: bool
    residual_every: int

class Buffers(Enum):
    broadcast = ...
    average = ...
    as_they_are = ...

class Warmup(Enum):
    linear = ...
    log = ...

class Decay(Enum):
    none = ...
    linear = ...
    cosine = ...
    inverse_sqrt = ...

class _Schedule:
    """config/learning_rate.h, as all that follow. copy.copy and copy.deepcopy work."""

    def __init__(self) -> None: ...
    def rate(self, base: float, applied_steps: int) -> float:
        """Of the next step after so many, where the optimizer was given `base`."""

class WarmupAndDecay(_Schedule):
    decay: Decay
    warmup: Warmup
    warmup_steps: int
    total_steps: int
    final_fraction: float

class WarmupLr(_Schedule):
    warmup_min_lr: float
    warmup_max_lr: float | None
    warmup_num_steps: int
    warmup_type: Warmup

class WarmupDecayLr(_Schedule):
    total_num_steps: int
    warmup_min_lr: float
    warmup_max_lr: float
    warmup_num_steps: int
    warmup_type: Warmup

class WarmupCosineLr(_Schedule):
    total_num_steps: int
    warmup_min_ratio: float
    warmup_num_steps: int
    cos_min_ratio: float
    warmup_type: Warmup

class OneCycle(_Schedule):
    cycle_min_lr: float
    cycle_max_lr: float
    decay_lr_rate: float
    cycle_first_step_size: int
    cycle_second_step_size: int | None
    cycle_first_stair_count: int
    cycle_second_stair_count: int | None
    decay_step_size: int

class LrRangeTest(_Schedule):
    lr_range_test_min_lr: float
    lr_range_test_step_size: int
    lr_range_test_step_rate: float
    lr_range_test_staircase: bool

Schedule: TypeAlias = (
    WarmupAndDecay | WarmupLr | WarmupDecayLr | WarmupCosineLr | OneCycle | LrRangeTest
)

class Config:
    """config::Config, field by field; its structs are references into it, and
    `optimizer` and `schedule` the objects that were assigned. copy.copy and
    copy.deepcopy copy all of it."""

    def __init__(self) -> None: ...
    optimizer: Options
    precision: PrecisionConfig
    gradient_clipping: float
    calibrated_clipping: bool
    lagged_clipping: bool
    train_batch_size: int | None
    train_micro_batch_size_per_gpu: int | None
    gradient_accumulation_steps: int | None
    managed_gradient_accumulation: bool
    accumulation_dtype: DType
    communication_dtype: DType | None
    schedule: Schedule
    zero: ZeroConfig
    comm: CommConfig
    checkpoint: CheckpointConfig
    telemetry: TelemetryConfig
    fallback: Fallback
    buffers: Buffers
    prescale_gradients: bool
    gradient_predivide_factor: float
    steps_per_print: int
    wall_clock_breakdown: bool
    memory_breakdown: bool
    semantics: Semantics
    other_objects: dict[str, str]
    def validate(self, world: int) -> None: ...
    def batch(self, world: int) -> tuple[int, int, int]:
        """(train, micro, accumulation steps), resolved."""
    def optimizer_name(self) -> str: ...
    def to_json(self) -> str: ...
    @staticmethod
    def from_json(
        text: str,
        autos: Mapping[str, float] | None = None,
        taken: Sequence[str] = (),
    ) -> tuple[Config, list[KeyNote]]:
        """`autos`: total_num_steps, warmup_num_steps and learning_rate, where a file
        says "auto"."""
    @staticmethod
    def from_file(
        path: str,
        autos: Mapping[str, float] | None = None,
        taken: Sequence[str] = (),
    ) -> tuple[Config, list[KeyNote]]: ...

# ---- planner: engine/planner.h, engine/measure.h

class Network:
    """str() is a line, or two."""

    def __init__(self) -> None: ...
    ranks: int
    ranks_per_host: int
    gbps: float
    latency_seconds: float
    def validate(self) -> None: ...

class MeasuredNetwork(Network):
    """str() gives spreads too, and ends with the warning of unstable()."""

    def unstable(self) -> str:
        """A line that names the figures that differ between rounds, or ""."""

class Compute:
    """Seconds per element."""

    def __init__(self) -> None: ...
    norm: float
    sum: float

class MeasuredCompute(Compute):
    """As MeasuredNetwork."""

    spread: Compute
    def unstable(self) -> str: ...

class Workload:
    def __init__(self) -> None: ...
    parameters: float
    dtype: DType
    forward_seconds: float
    backward_seconds: float
    steps_per_variance_step: float
    has_spare_core: bool

class Processors:
    """engine::Processors; str() is a line for people."""

    has_spare_core: bool

def workload_of(config: Config, ranks: int, work: Workload) -> Workload:
    """With what the configuration says of dtypes, buckets and backwards per step."""

def workload_of_run(
    work: Workload, total_steps: int, freeze_step: int | None, config: Config | None
) -> Workload:
    """With a run; stages that nobody names follow from its length."""

def measure_network(comm: Communicator) -> tuple[MeasuredNetwork, str]:
    """Collective; and why ranks do not exchange by host, or ""."""

def measure_compute(comm: Communicator) -> MeasuredCompute:
    """Collective."""

def measure_processors(comm: Communicator, threads: int = -1) -> Processors:
    """Collective: the machine with the least to spare."""

def processors_for(ranks: int, threads: int = -1) -> Processors:
    """On a machine like this one."""

def plan(work: Workload, network: Network, compute: Compute, json: bool = False) -> str:
    """A line per way, and the fastest."""

# ---- optimizer and engine

class StepReport:
    """optim::StepReport, field by field; phase is "exact", "compressed" or "local"."""

    applied: bool
    nonfinite_rank: int
    phase: str
    grad_norm: float
    grad_norm_is_estimate: bool
    clip_factor: float
    loss_scale: float
    masked: int
    heavy: int
    revived: int
    bytes_sent: int
    collectives: int
    messages: int
    bytes_between_hosts: int
    residuals_cleared: bool
    seconds: float
    exchange_seconds: float
    comm_busy_seconds: float
    gradients_equal: bool

class EngineReport(StepReport):
    at_boundary: bool
    steps: int
    learning_rate: float
    backward_seconds: float
    late_elements: int
    waited_for: str

State: TypeAlias = dict[str, Any]
"""Arrays (with DLPack; they own their memory, no second copy) and scalars by name."""

class Optimizer:
    """engine::make_optimizer: an optimizer, in 16 bits with its masters."""

    def __init__(
        self,
        comm: Communicator,
        layout: Layout,
        config: Config,
        params: Array,
        initial: Array | None = None,
        experts: list[tuple[int, Communicator]] = ...,
    ) -> None:
        """Collective. `params`: of config.precision.dtype. `initial`: fp32, for masters.
        `experts`: numbers of groups of config.optimizer, and who holds them."""
    def step(
        self, params: Array, grads: Array, loss_scale: float = 1.0
    ) -> StepReport: ...
    def synchronize(self, params: Array) -> None: ...
    @property
    def steps(self) -> int: ...
    @property
    def skipped_steps(self) -> int: ...
    @property
    def phase(self) -> str: ...
    @property
    def freeze_step(self) -> int | None:
        """The last exact step as it is planned now, or AUTO_FREEZE; of 0/1 Adam the last
        one in which the variance may change; None where all are exact."""
    @property
    def loss_scale(self) -> float: ...
    @property
    def residual_ratio(self) -> float | None:
        """Norm of the residual over that of the last exchange's result; None where
        there is none to ask: exact optimizers, 16 bits, semantics "deepspeed"."""
    def lamb_coeffs(self) -> list[float]: ...
    @property
    def steps_behind(self) -> int: ...
    def set_learning_rate(self, group: int, learning_rate: float) -> None: ...
    def learning_rate(self, group: int) -> float: ...
    def set_weight_decay(self, group: int, weight_decay: float) -> None:
        """Local; no part of the state."""
    def set_exp_avg_mask(self, group: int, mask: Array) -> None:
        """Local; fp32, one value per element of the group, or none: 1 everywhere."""
    def take_notes(self) -> list[str]:
        """What the last load has made otherwise than the state had it."""
    def masters(self) -> Array | None:
        """A copy, fp32; None where parameters are their own masters, and with ZeRO,
        which shards them."""
    def read_masters(self, params: Array) -> None:
        """Local: masters, where there are some, become these parameters."""
    def write_params(self, params: Array) -> None:
        """Local: parameters of 16 bits become the masters, rounded; others stay."""
    def exchanged_params(self, params: Array) -> Array:
        """A copy: without the local steps since the last exchange."""
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...
    def adopt(self, state: State) -> None:
        """Local: a state that may be of another optimizer, number of ranks or precision."""
    def state_elements(self, array: str, offset: int, size: int) -> Array | None:
        """Local: these elements of an array of the state, fp32; None unless every rank has
        all of it."""
    def describe_state(self) -> list[tuple[str, str, str]]:
        """(name, axis, sharing) of every array: optim/state.h."""
    def close(self) -> None:
        """Idempotent. Frees the memory, and the group if that is closed, too."""

class Engine:
    """engine::Engine; `params` and `grads` stay alive with it. Like an Optimizer it
    takes one call at a time: FailedPrecondition for a second one."""

    def __init__(
        self,
        comm: Communicator,
        layout: Layout,
        config: Config,
        params: Array,
        grads: Array | None = None,
        initial: Array | None = None,
        experts: list[tuple[int, Communicator]] = ...,
        client: Any = None,
    ) -> None: ...
    def begin_backward(self) -> None: ...
    def gradient_ready(self, index: int, gradient: Array | None = None) -> None: ...
    def end_backward(self) -> None: ...
    def cancel_backward(self, reason: str) -> None: ...
    @property
    def is_boundary(self) -> bool: ...
    def set_accumulation_boundary(self, boundary: bool | None) -> None: ...
    def step(self) -> EngineReport: ...
    def mean(self, value: float) -> float: ...
    def set_model_parallel(self, comm: Communicator) -> None: ...
    def set_learning_rate(
        self, learning_rate: float, group: int | None = None
    ) -> None: ...
    def learning_rate(self, group: int) -> float: ...
    @property
    def loss_scale(self) -> float: ...
    def set_loss_scale(self, loss_scale: float) -> None: ...
    @property
    def loss_factor(self) -> float: ...
    @property
    def steps(self) -> int: ...
    @property
    def skipped_steps(self) -> int: ...
    @property
    def phase(self) -> str: ...
    @property
    def freeze_step(self) -> int | None:
        """The last exact step as it is planned now, or AUTO_FREEZE; of 0/1 Adam the last
        one in which the variance may change; None where all are exact."""
    def begin_evaluation(self) -> None: ...
    def end_evaluation(self) -> None: ...
    def masters(self) -> Array:
        """A copy, fp32; with ZeRO, which shards them, of the parameters."""
    def read_masters(self) -> None:
        """Local, between windows: masters become the parameters as they are now."""
    def full_parameter(self, name: str) -> Array: ...
    def full_gradient(self, name: str) -> Array: ...
    def full_state(self, name: str, key: str) -> Array: ...
    def set_full_parameter(self, name: str, values: Array) -> None: ...
    def set_full_gradient(self, name: str, values: Array) -> None: ...
    def set_full_state(self, name: str, key: str, values: Array) -> None: ...
    def lamb_coeffs(self) -> list[float]: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...
    def set_others(self, others: Callable[[], Others] | None) -> None:
        """Called on the caller's thread at every save and load. What it raises is
        raised there, and FailedPrecondition on the other ranks."""
    def save(
        self, root: str, extra: Extra | None = None, options: SaveOptions | None = None
    ) -> SaveReport: ...
    def load(
        self,
        path: str,
        options: LoadOptions | None = None,
        *,
        accept: Accept | None = None,
    ) -> LoadReport: ...
    def resume(
        self,
        path: str,
        options: LoadOptions | None = None,
        *,
        accept: Accept | None = None,
    ) -> LoadReport | None: ...
    def wait_for_save(self) -> None: ...
    @property
    def is_saving(self) -> bool: ...
    def retain(self, root: str, keep_last: int, keep_every: int = 0) -> None: ...
    def close(self) -> None: ...

def keeps_gradients(config: Config, world: int) -> bool: ...

# ---- checkpoints

class Others:
    """Tensors beside the trainable parameters: (name, shape, flat values, is bool), and
    further names of tied ones: (alias, name). Loads write the values."""

    def __init__(
        self,
        tensors: Sequence[tuple[str, Sequence[int], Array, bool]] = (),
        aliases: Sequence[tuple[str, str]] = (),
    ) -> None: ...

class Extra:
    """What the application adds: scalars (int, float, str) and arrays by name."""

    def __init__(
        self,
        common: Mapping[str, Any] | None = None,
        own: Mapping[str, Any] | None = None,
    ) -> None: ...

class LocalSteps(Enum):
    as_is = ...
    next_sync = ...
    synchronize = ...

class Residuals(Enum):
    per_rank = ...
    mean = ...

class Storage(Enum):
    shared = ...
    node_local = ...

class SaveOptions:
    def __init__(self) -> None: ...
    asynchronous: bool
    durable: bool
    check_replicas: bool
    local_steps: LocalSteps
    residuals: Residuals
    storage: Storage
    frozen: bool
    attachments: list[tuple[str, bytes]]
    """(name, bytes) of files beside the checkpoint's own."""
    progress: Callable[[int, int], object] | None
    """Called with bytes written and their total by the thread that writes, on rank 0."""

class LoadOptions:
    def __init__(self) -> None: ...
    weights_only: bool
    fall_back: bool
    allow_rounding: bool
    share_reads: bool
    rename: list[tuple[str, str]]
    """(old name, new name)."""
    allow_missing: list[str]
    ignore: list[str]

class SaveReport:
    path: str
    step: int
    bytes: int
    seconds: float
    waited_seconds: float

class LoadReport:
    path: str
    step: int
    run: str
    world: int
    optimizer: str
    precision: str
    config: str
    scalars: State
    common: State
    own: State
    own_of_ranks: list[State]
    """Of all ranks that saved; `own` is empty on ranks that were not among them."""
    notes: list[str]
    seconds: float
    bytes: int

Accept: TypeAlias = Callable[[LoadReport], None]
"""Called on every rank with what a load will report, after everything was checked and
before anything changes. What it raises on one rank is CorruptCheckpoint on all."""

def save(
    comm: Communicator,
    layout: Layout,
    params: Array,
    optimizer: Optimizer,
    root: str,
    step: int,
    *,
    semantics: str = "corrected",
    config: str = "",
    others: Others | None = None,
    extra: Extra | None = None,
    options: SaveOptions | None = None,
) -> SaveReport: ...
def load(
    comm: Communicator,
    layout: Layout,
    params: Array,
    optimizer: Optimizer,
    path: str,
    *,
    others: Others | None = None,
    options: LoadOptions | None = None,
    accept: Accept | None = None,
) -> LoadReport: ...
def resume(
    comm: Communicator,
    layout: Layout,
    params: Array,
    optimizer: Optimizer,
    path: str,
    *,
    others: Others | None = None,
    options: LoadOptions | None = None,
    accept: Accept | None = None,
) -> LoadReport | None:
    """As load(); None where there is no complete checkpoint yet."""

def inspect(path: str) -> list[dict[str, Any]]:
    """checkpoint::Description of a checkpoint, or of all in a root, newest first."""

def verify(path: str) -> dict[str, Any]:
    """good, bytes, nonfinite, and damages: file, begin, end, what. Reads every byte."""

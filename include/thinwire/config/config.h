// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "thinwire/config/learning_rate.h"
#include "thinwire/config/semantics.h"
#include "thinwire/core/dtype.h"
#include "thinwire/lean/lean_onebit_adam.h"
#include "thinwire/optim/adam.h"
#include "thinwire/optim/average_options.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/experts.h"
#include "thinwire/optim/lamb.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/onebit_lamb.h"
#include "thinwire/optim/zero_one_adam.h"
#include "thinwire/outer/outer_options.h"
#include "thinwire/precision/loss_scaler.h"
#include "thinwire/zero/wire_options.h"

namespace thinwire::config {

/// The optimizer and its settings. Leave their `exchange` at its default,
/// because Config has separate fields for it.
using OptimizerConfig =
    std::variant<optim::AdamOptions, optim::LambOptions,
                 optim::OnebitAdamOptions, optim::OnebitLambOptions,
                 optim::ZeroOneAdamOptions, lean::LeanOnebitAdamOptions>;

/// Number formats of parameters, masters and states.
struct PrecisionConfig {
  /// Dtype of parameters and gradients: kFloat32, kFloat16 or kBFloat16.
  DType dtype = DType::kFloat32;
  /// Settings that apply only with kFloat16.
  precision::LossScalerOptions loss_scale{};
  /// Whether all ranks skip a step if any rank has a non-finite gradient. Must
  /// be true with kFloat16.
  bool check_grad_overflow = true;
  /// Dtype of the values that the optimizer updates: kFloat32, or `dtype` with
  /// Adam, which then rounds parameters at every step and needs no masters.
  DType master_dtype = DType::kFloat32;
  /// Dtype of moments: kFloat32, or `master_dtype` with Adam.
  DType state_dtype = DType::kFloat32;

  bool operator==(const PrecisionConfig&) const = default;
};

/// DeepSpeed's zero_optimization.offload_optimizer.device.
enum class OffloadDevice { kNone, kCpu };

/// ZeRO (arXiv:1910.02054): optimizer states, and at stage 2 gradients, sharded
/// over the ranks.
struct ZeroConfig {
  int stage = 0;               ///< In [0, 2]; 0 unless the optimizer is exact.
  bool reduce_scatter = true;  ///< kDeepSpeed: rounding of sums.
  /// Largest number of elements, >= 0, that are reduced together; an upper
  /// bound for CommConfig::bucket_elements.
  std::int64_t reduce_bucket_size = 500'000'000;
  /// Largest number of parameters, >= 0, that are gathered together. Gradients
  /// and parameters share their buckets, so the smaller of the two bounds
  /// applies.
  std::int64_t allgather_bucket_size = 500'000'000;
  /// Whether parameters without a gradient are allowed. If not, step() throws
  /// Error(kFailedPrecondition) naming a parameter that had none on some rank.
  bool ignore_unused_parameters = true;
  bool round_robin_gradients = false;  ///< kDeepSpeed: order of parameters.
  /// Has no effect, because masters and states are always in host memory and
  /// updated there, even if tensors are on a device.
  OffloadDevice offload_optimizer = OffloadDevice::kNone;
  /// Low-bit communication. Requires an exact optimizer and stage 1 or 2.
  zero::WireOptions wire{};

  bool operator==(const ZeroConfig&) const = default;
};

/// Handling of a module's buffers (running statistics of a batch norm) at
/// construction and in evaluations. torch::Engine uses it; engine::Engine has
/// no buffers.
enum class Buffers {
  kBroadcast,  ///< Sends rank 0's buffers to all ranks.
  kAverage,    ///< Means over the ranks; integers are rank 0's.
  kAsTheyAre,  ///< Lets each rank keep its own.
};

/// Whether ranks on one host reduce locally first.
enum class Hierarchy {
  kAuto,    ///< Hierarchical if all hosts have the same number of ranks, at
            ///< least two.
  kFlat,    ///< Every rank exchanges with all others.
  kByHost,  ///< Hierarchical, or Error(kInvalidArgument) if impossible.
};

/// DeepSpeed's comm_backend_name. In C++ the caller passes a communicator, so
/// this only makes an engine log a line if its ranks use another transport.
/// Python's initialize() follows kMpi and kGloo; kNccl and kHccl name the group
/// that sums inside a host, for models on devices.
enum class CommBackend { kUnset, kNccl, kHccl, kMpi, kGloo };

/// Settings of the exchange between ranks. If it is hierarchical, results
/// depend on which ranks share a host, because each host first computes its own
/// sum. No other field here affects results.
struct CommConfig {
  CommBackend backend = CommBackend::kUnset;
  Hierarchy hierarchy = Hierarchy::kAuto;
  /// Ranks per host, >= 0; 0 for detection (comm::find_hosts), 1 for flat.
  int ranks_per_host = 0;
  /// Number of elements that are sent together, with ZeRO at most
  /// reduce_bucket_size; 0 for the rule of exchange/bucket_rule.h.
  std::size_t bucket_elements = 0;
  /// Threads per rank, in [0, 1024]; 0 for THINWIRE_NUM_THREADS or, if unset,
  /// 1.
  int num_threads = 0;
  /// Steps between comparisons of the ranks' checksums, >= 0; 0 for never.
  std::int64_t verify_every = 0;
  /// Whether exact averages begin during backward.
  bool overlap = true;
  /// See ExchangeOptions::under_next_step.
  bool compressed_under_next_step = false;

  bool operator==(const CommConfig&) const = default;
};

/// Settings of the file of steps, with a JSON object per line.
struct TelemetryConfig {
  std::string path{};               ///< Path; if empty, nothing is written.
  std::int64_t every = 1;           ///< Steps per line, >= 1.
  bool every_rank = false;          ///< All ranks write, each to PATH.rankN.
  std::int64_t residual_every = 0;  ///< Steps per residual ratio; 0 for never.

  bool operator==(const TelemetryConfig&) const = default;
};

/// Reaction to a compression stage that is not faster than exact steps.
enum class Fallback {
  kOff,   ///< Measures nothing.
  kWarn,  ///< Logs one line.
  kHold,  ///< Delays the freeze and tries again later.
};

/// Place and times of a program's checkpoints, which
/// engine::checkpointer_options() uses. DeepSpeed's files have no such keys.
struct CheckpointConfig {
  std::string root{};            ///< Directory; empty for the program's choice.
  std::int64_t every_steps = 0;  ///< Steps per save, >= 0; 0 for none by steps.
  std::chrono::milliseconds every{0};  ///< In [0, 1000h]; 0 for none by time.
  std::int64_t keep_last = 2;          ///< Newest checkpoints to keep, >= 0; 0:
                                       ///< all.
  std::int64_t keep_every = 0;         ///< Also keep every N-th step, >= 0.
  bool asynchronous = true;            ///< Training continues during a save.

  bool operator==(const CheckpointConfig&) const = default;
};

/// Samples per step; train = micro * accumulation_steps * world size.
struct BatchSizes {
  std::int64_t train = 0;  ///< Samples of all ranks; 0 if not given.
  std::int64_t micro = 0;  ///< Samples of a rank's backward; 0 if not given.
  std::int64_t accumulation_steps = 1;  ///< Backwards per step, >= 1.

  bool operator==(const BatchSizes&) const = default;
};

/// Treatment of one key of a file.
struct KeyNote {
  enum class Kind {
    kSupported,
    kIgnored,   ///< Accepted without effect, for the reason in `note`.
    kAbsent,    ///< Not in the file; `note` has its replacement.
    kRejected,  ///< Rejected for the reason in `note`. Only from check_file().
  };
  std::string path;  ///< Path of the key, for example "fp16.loss_scale".
  Kind kind = Kind::kSupported;
  /// Reason or replacement. For a supported key empty, or "auto: from the
  /// program" (AutoValues).
  std::string note;
  std::string value{};  ///< Value in the file, as JSON; for kAbsent empty.
};

/// Returns a line: "fp16.enabled: supported", "dump_state: ignored (no effect):
/// REASON" or "gradient_clipping: absent: REPLACEMENT".
[[nodiscard]] std::string describe(const KeyNote& note);

/// Values that a program supplies if a file says "auto", as Hugging Face's
/// files do.
struct AutoValues {
  std::optional<std::int64_t> total_num_steps{};   ///< Steps of the run, >= 1.
  std::optional<std::int64_t> warmup_num_steps{};  ///< >= 0; 0 counts as 1.
  /// Rate of the optimizer, and the highest rate of WarmupDecayLR. If unset,
  /// the key counts as absent, and WarmupDecayLR uses the optimizer's rate in
  /// the file.
  std::optional<double> learning_rate{};
};

/// The settings of an Engine, written with designated initializers or read from
/// a DeepSpeed configuration file. docs/guide/from-deepspeed.md lists every
/// key. The defaults here are Thinwire's; those of a file are DeepSpeed's.
struct Config {
  OptimizerConfig optimizer{};
  PrecisionConfig precision{};
  /// Global L2 norm to which gradients are clipped; 0 for never. Finite, >= 0.
  double gradient_clipping = 0;
  bool lagged_clipping = false;  ///< See ExchangeOptions.

  /// Samples of all ranks per step. Any two of this field and the next two, or
  /// one of the first two, determine the rest. Each is >= 1.
  std::optional<std::int64_t> train_batch_size{};
  /// Samples per backward of one rank.
  std::optional<std::int64_t> train_micro_batch_size_per_gpu{};
  /// Backwards per step.
  std::optional<std::int64_t> gradient_accumulation_steps{};
  /// Whether only every gradient_accumulation_steps-th step() takes effect. If
  /// false, every step() does, and the caller decides when.
  bool managed_gradient_accumulation = true;

  /// Dtype in which gradients are accumulated: kFloat32 or precision.dtype.
  DType accumulation_dtype = DType::kFloat32;
  /// Dtype in which exact averages are sent: kFloat32, kFloat16 or kBFloat16;
  /// if unset, precision.dtype.
  std::optional<DType> communication_dtype{};
  /// Whether each rank divides by the number of ranks before the sum instead of
  /// after it. Used with kDeepSpeed if sums are rounded to 16 bits or ZeRO
  /// computes them.
  bool prescale_gradients = false;
  /// If such sums are not prescaled, the part of that division which comes
  /// before the sum. Finite, > 0.
  double gradient_predivide_factor = 1;
  LearningRateSchedule schedule{};
  ZeroConfig zero{};
  /// Averaging of gradients by Adam and LAMB without ZeRO.
  optim::AverageOptions average{};
  CommConfig comm{};
  /// An outer loop around Adam, LAMB or 1-bit Adam, if sync_every is above 0.
  outer::OuterOptions outer{};
  CheckpointConfig checkpoint{};
  TelemetryConfig telemetry{};
  Fallback fallback = Fallback::kWarn;
  Buffers buffers = Buffers::kBroadcast;
  /// Steps per line of a program's log; 0 for none. Engine logs no such lines.
  std::int64_t steps_per_print = 0;
  /// Whether rank 0 logs the parts of a step's time, every steps_per_print
  /// steps, or every 10 steps if that is 0.
  bool wall_clock_breakdown = false;
  /// Whether rank 0 logs its memory, at the start and after the first step.
  bool memory_breakdown = false;
  Semantics semantics = Semantics::kCorrected;
  /// A program's own objects at the top level of a file, by name, as JSON text.
  /// The caller names them in `taken` of from_json().
  std::map<std::string, std::string> other_objects{};

  /// Checks the settings for `world` ranks, >= 1. Throws
  /// Error(kInvalidArgument) naming the field, its range and its value, also if
  /// settings exclude one another.
  void validate(int world) const;

  /// Returns the three numbers of samples, resolved. Without either batch size,
  /// both are 0. Throws Error(kInvalidArgument) if they contradict each other.
  [[nodiscard]] BatchSizes batch(int world) const;
  /// Returns the optimizer's settings for ranks and clipping.
  [[nodiscard]] optim::ExchangeOptions exchange_options() const;
  /// Returns zero.wire. If residual_dtype is unset and residuals accumulate
  /// several backwards, it becomes kFloat32. `world` and errors are those of
  /// batch().
  [[nodiscard]] zero::WireOptions wire_options(int world) const;
  /// Returns `optimizer` with this Config's exchange_options().
  [[nodiscard]] OptimizerConfig optimizer_options() const;
  /// Returns `outer`. With 1-bit Adam its warm-up ends at the freeze.
  [[nodiscard]] outer::OuterOptions outer_options() const;
  /// Returns the groups of `optimizer` that name a communicator.
  [[nodiscard]] std::vector<optim::ExpertGroup> experts() const;

  /// Reads DeepSpeed's keys at the top level and Thinwire's in the object
  /// "thinwire". Every key is supported, ignored (no effect) or rejected.
  /// Appends a note for each to `notes` in the order of the file; without
  /// `notes`, logs the ignored keys (core/log.h). Throws
  /// Error(kInvalidArgument) with the key's path for text that is not JSON, for
  /// unknown and rejected keys, for wrong types and numbers out of range.
  /// validate() checks ZeRO and settings that depend on the number of ranks.
  /// "auto" becomes the value in `autos`. If there is none, a scheduler's
  /// numbers of steps are rejected, and other keys count as absent. `taken`
  /// names top-level objects that belong to the caller and are stored in
  /// `other_objects` unchanged. No key may have such a name.
  [[nodiscard]] static Config from_json(
      std::string_view text, std::vector<KeyNote>* notes = nullptr,
      const AutoValues& autos = {}, const std::vector<std::string>& taken = {});
  /// Reads a file like from_json(); messages name the file.
  [[nodiscard]] static Config from_file(
      const std::string& path, std::vector<KeyNote>* notes = nullptr,
      const AutoValues& autos = {}, const std::vector<std::string>& taken = {});
  /// Returns a text from which from_json() makes an equal Config, if this one
  /// is valid and `taken` has the names of `other_objects`. It omits moments in
  /// fp16 and comm.backend of exact optimizers, which no file can contain.
  /// Throws Error(kInvalidArgument) for settings per group of parameters, which
  /// no file can contain.
  [[nodiscard]] std::string to_json() const;
  /// Returns a text with the settings that must be equal on all ranks. It omits
  /// threads, `other_objects` and the optimizer's groups of parameters.
  [[nodiscard]] std::string describe() const;

  bool operator==(const Config&) const = default;
};

/// Returns the treatment of each key of a file, in the file's order. After a
/// rejected key, it continues without that key. "auto" counts as known to the
/// program, and `taken` is as for from_json(). If `ranks` is set, also rejects
/// settings that validate() refuses for this number of ranks, otherwise those
/// that it refuses for any number. Combinations are checked only if no key is
/// rejected. Throws Error(kInvalidArgument) for a file that cannot be read or
/// is not a JSON object.
[[nodiscard]] std::vector<KeyNote> check_file(
    const std::string& path, std::optional<int> ranks = std::nullopt,
    const std::vector<std::string>& taken = {});

/// "adam", "lamb", "onebit_adam", "onebit_lamb", "zero_one_adam",
/// "lean_onebit_adam".
[[nodiscard]] std::string_view name_of(
    const OptimizerConfig& optimizer) noexcept;

}  // namespace thinwire::config

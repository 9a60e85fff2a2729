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
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/experts.h"
#include "thinwire/optim/lamb.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/onebit_lamb.h"
#include "thinwire/optim/zero_one_adam.h"
#include "thinwire/precision/loss_scaler.h"
#include "thinwire/zero/wire_options.h"

namespace thinwire::config {

/// Which optimizer, and its settings. Leave their `exchange` at its default:
/// Config has fields of its own for it.
using OptimizerConfig =
    std::variant<optim::AdamOptions, optim::LambOptions,
                 optim::OnebitAdamOptions, optim::OnebitLambOptions,
                 optim::ZeroOneAdamOptions, lean::LeanOnebitAdamOptions>;

/// What numbers are kept in.
struct PrecisionConfig {
  /// Parameters and gradients: kFloat32, kFloat16 or kBFloat16.
  DType dtype = DType::kFloat32;
  /// Used only with kFloat16.
  precision::LossScalerOptions loss_scale{};
  /// A step with a gradient that is not finite on any rank is skipped on all.
  /// Must be true with kFloat16.
  bool check_grad_overflow = true;
  /// The type of what the optimizer updates: kFloat32, or `dtype` with Adam,
  /// which then rounds parameters at every step and needs no masters.
  DType master_dtype = DType::kFloat32;
  /// The type of moments: kFloat32, or `master_dtype` with Adam.
  DType state_dtype = DType::kFloat32;

  bool operator==(const PrecisionConfig&) const = default;
};

/// Where ZeRO keeps what the optimizer needs.
enum class OffloadDevice { kNone, kCpu };

/// ZeRO (arXiv:1910.02054): optimizer states, and at stage 2 gradients, sharded
/// over the ranks.
struct ZeroConfig {
  int stage = 0;               ///< In [0, 2]; above 0 with an exact optimizer.
  bool reduce_scatter = true;  ///< kDeepSpeed: how sums are rounded.
  /// Most elements that are reduced together, >= 0; an upper bound for
  /// CommConfig::bucket_elements.
  std::int64_t reduce_bucket_size = 500'000'000;
  /// Most parameters that are gathered together, >= 0. Gradients and parameters
  /// share their buckets, so the smaller of the two bounds holds.
  std::int64_t allgather_bucket_size = 500'000'000;
  /// false: step() throws Error(kFailedPrecondition) naming a parameter that
  /// had no gradient on some rank.
  bool ignore_unused_parameters = true;
  bool round_robin_gradients = false;  ///< kDeepSpeed: order of parameters.
  /// kCpu: masters and states are in host memory and updated there.
  OffloadDevice offload_optimizer = OffloadDevice::kNone;
  /// Few bits each way; only with an exact optimizer and stage 1 or 2.
  zero::WireOptions wire{};

  bool operator==(const ZeroConfig&) const = default;
};

/// What happens to a module's buffers (running statistics of a batch norm) at
/// construction and in evaluations. Used by torch::Engine; an Engine has none.
enum class Buffers {
  kBroadcast,  ///< Rank 0's go to all ranks.
  kAverage,    ///< Means over the ranks; of integers rank 0's.
  kAsTheyAre,  ///< Each rank keeps its own.
};

/// Whether ranks of one host exchange among themselves first.
enum class Hierarchy {
  kAuto,    ///< By host where hosts hold several ranks each, equally many.
  kFlat,    ///< Every rank with every other.
  kByHost,  ///< By host, or Error(kInvalidArgument) where that cannot be.
};

/// DeepSpeed's comm_backend_name. The engine is given its communicator, so this
/// chooses nothing in C++: an engine logs a line if its ranks exchange over
/// another transport. Python's initialize() follows kMpi and kGloo.
enum class CommBackend { kUnset, kNccl, kHccl, kMpi, kGloo };

/// How ranks exchange. Results depend on which ranks share a host, where they
/// exchange by host, because sums are formed per host first; on nothing else.
struct CommConfig {
  CommBackend backend = CommBackend::kUnset;
  Hierarchy hierarchy = Hierarchy::kAuto;
  /// Ranks per host, >= 0; 0: found out (comm::find_hosts); 1: flat.
  int ranks_per_host = 0;
  /// Elements that travel together, with ZeRO at most reduce_bucket_size; 0: by
  /// rule (compress/bucket_rule.h).
  std::size_t bucket_elements = 0;
  /// Threads per rank, in [0, 1024]; 0: THINWIRE_NUM_THREADS, else 1.
  int num_threads = 0;
  /// Ranks compare checksums every so many steps; 0: never. >= 0.
  std::int64_t verify_every = 0;
  /// Exact averages begin while backward goes on.
  bool overlap = true;
  /// See ExchangeOptions::during_backward.
  bool compressed_during_backward = false;

  bool operator==(const CommConfig&) const = default;
};

/// What a run writes of its steps, a JSON object per line.
struct TelemetryConfig {
  std::string path{};               ///< Of the file; empty: nothing is written.
  std::int64_t every = 1;           ///< Steps per line, >= 1.
  bool every_rank = false;          ///< Else rank 0 alone; adds ".rankN".
  std::int64_t residual_every = 0;  ///< Steps per residual ratio; 0: never.

  bool operator==(const TelemetryConfig&) const = default;
};

/// What becomes of a compression stage that is not faster than exact steps.
enum class Fallback {
  kOff,   ///< Nothing is measured.
  kWarn,  ///< One line in the log.
  kHold,  ///< The freeze is put off, and tried again later.
};

/// Where and when a program saves checkpoints, if it does: for
/// engine::checkpointer_options(). DeepSpeed's files say nothing of it.
struct CheckpointConfig {
  std::string root{};            ///< Directory; empty: the program's choice.
  std::int64_t every_steps = 0;  ///< >= 0; 0: not by steps.
  std::chrono::milliseconds every{0};  ///< In [0, 1000h]; 0: not by time.
  std::int64_t keep_last = 2;          ///< Newest ones that stay, >= 0; 0: all.
  std::int64_t keep_every = 0;         ///< And those of every N-th step, >= 0.
  bool asynchronous = true;            ///< Written while training goes on.

  bool operator==(const CheckpointConfig&) const = default;
};

/// Samples per step; train = micro * accumulation_steps * world size.
struct BatchSizes {
  std::int64_t train = 0;  ///< Of all ranks; 0: not given.
  std::int64_t micro = 0;  ///< Of one backward on one rank; 0: not given.
  std::int64_t accumulation_steps = 1;  ///< Backwards per step, >= 1.

  bool operator==(const BatchSizes&) const = default;
};

/// What became of one key of a file.
struct KeyNote {
  enum class Kind {
    kSupported,
    kIgnored,  ///< Accepted, but it has no effect: `note` says why.
    kAbsent,   ///< Not in the file: `note` says what holds instead.
  };
  std::string path;  ///< "fp16.loss_scale".
  Kind kind = Kind::kSupported;
  /// Of a supported key: empty, or "auto: from the program" (AutoValues).
  std::string note;
};

/// "fp16.enabled: supported", "dump_state: ignored (no effect): WHY",
/// "gradient_clipping: absent: WHAT HOLDS".
[[nodiscard]] std::string describe(const KeyNote& note);

/// What a program knows where a file says "auto", as Hugging Face's files do.
struct AutoValues {
  std::optional<std::int64_t> total_num_steps{};   ///< Of the run, >= 1.
  std::optional<std::int64_t> warmup_num_steps{};  ///< >= 0; 0 counts as 1.
  /// Of the optimizer, and the highest of WarmupDecayLR; unset: as if absent,
  /// and for WarmupDecayLR the optimizer's in the file.
  std::optional<double> learning_rate{};
};

/// The settings of an Engine. Written with designated initializers, or read
/// from a DeepSpeed configuration file: docs/guide/from-deepspeed.md has every
/// key. The defaults here are ours; a file's are DeepSpeed's.
struct Config {
  OptimizerConfig optimizer{};
  PrecisionConfig precision{};
  /// Gradients are clipped to this global L2 norm; 0: never. Finite, >= 0.
  double gradient_clipping = 0;
  bool lagged_clipping = false;  ///< See ExchangeOptions.

  /// Samples per step of all ranks; each >= 1. Any two of these three, or one
  /// of the first two, determine the rest.
  std::optional<std::int64_t> train_batch_size{};
  /// Samples per backward of one rank.
  std::optional<std::int64_t> train_micro_batch_size_per_gpu{};
  /// Backwards per step.
  std::optional<std::int64_t> gradient_accumulation_steps{};
  /// Every gradient_accumulation_steps-th step() takes effect; otherwise every
  /// one does, and the caller says when.
  bool managed_gradient_accumulation = true;

  /// The type in which gradients are added up: kFloat32 or precision.dtype.
  DType accumulation_dtype = DType::kFloat32;
  /// The type in which exact averages travel: kFloat32, kFloat16 or kBFloat16;
  /// unset: precision.dtype.
  std::optional<DType> communication_dtype{};
  /// kDeepSpeed, where sums are rounded to 16 bits or formed by ZeRO: each rank
  /// divides by the number of ranks before the sum, not after it.
  bool prescale_gradients = false;
  /// kDeepSpeed, likewise: the part of that division which comes before the sum
  /// if prescale_gradients is false. Finite, > 0.
  double gradient_predivide_factor = 1;
  LearningRateSchedule schedule{};
  ZeroConfig zero{};
  CommConfig comm{};
  CheckpointConfig checkpoint{};
  TelemetryConfig telemetry{};
  Fallback fallback = Fallback::kWarn;
  Buffers buffers = Buffers::kBroadcast;
  std::int64_t steps_per_print = 0;  ///< Steps per line of a log; 0: none.
  /// Rank 0 logs where a step's time went, every steps_per_print steps; if that
  /// is 0, every 10 steps.
  bool wall_clock_breakdown = false;
  /// Rank 0 logs what its memory holds, at the start and after the first step.
  bool memory_breakdown = false;
  Semantics semantics = Semantics::kCorrected;
  /// Objects at the top of a file that are a program's own, by name, as JSON
  /// text: those that it has told from_json() to take.
  std::map<std::string, std::string> other_objects{};

  /// Throws Error(kInvalidArgument) naming the field, its range and its value,
  /// also for settings that exclude one another; Error(kUnavailable) for those
  /// that are planned. `world` is the number of ranks, >= 1.
  void validate(int world) const;

  /// The three numbers of samples, resolved; throws Error(kInvalidArgument)
  /// where they contradict each other. With neither batch size, both are 0.
  [[nodiscard]] BatchSizes batch(int world) const;
  /// What the optimizer is told of ranks and clipping.
  [[nodiscard]] optim::ExchangeOptions exchange_options() const;
  /// zero.wire, with residuals of kFloat32 where they are not given and have to
  /// add several backwards up. `world` and errors as of batch().
  [[nodiscard]] zero::WireOptions wire_options(int world) const;
  /// `optimizer` with this Config's exchange_options().
  [[nodiscard]] OptimizerConfig optimizer_options() const;
  /// The groups of `optimizer` that name a communicator of their own.
  [[nodiscard]] std::vector<optim::ExpertGroup> experts() const;

  /// Reads DeepSpeed's keys at the top level, ours in the object "thinwire".
  /// Every key is supported, ignored (no effect) or rejected. What became of it
  /// is appended to `notes` in the order of the file; without `notes`, ignored
  /// keys are logged (core/log.h). Throws Error(kInvalidArgument) with the
  /// key's path for text that is not JSON, for unknown and rejected keys, for
  /// wrong types and numbers out of range. What depends on the number of ranks,
  /// and ZeRO, is left to validate(). "auto" takes the value in `autos`;
  /// without one a scheduler's numbers of steps are rejected, all else counts
  /// as absent. `taken` names objects at the top that are the caller's own;
  /// they go to `other_objects` untouched. No key may have such a name.
  [[nodiscard]] static Config from_json(
      std::string_view text, std::vector<KeyNote>* notes = nullptr,
      const AutoValues& autos = {}, const std::vector<std::string>& taken = {});
  /// The same of a file, which messages then name.
  [[nodiscard]] static Config from_file(
      const std::string& path, std::vector<KeyNote>* notes = nullptr,
      const AutoValues& autos = {}, const std::vector<std::string>& taken = {});
  /// A text of which from_json() makes an equal Config, if this one is valid
  /// and the names of `other_objects` are taken.
  /// Throws Error(kInvalidArgument) for what no file can say: settings per
  /// group of parameters.
  [[nodiscard]] std::string to_json() const;

  bool operator==(const Config&) const = default;
};

/// "adam", "lamb", "onebit_adam", "onebit_lamb", "zero_one_adam",
/// "lean_onebit_adam".
[[nodiscard]] std::string_view name_of(
    const OptimizerConfig& optimizer) noexcept;

}  // namespace thinwire::config

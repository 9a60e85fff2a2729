// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/train_gpt/options/saving.h"
#include "thinwire/config/config.h"
#include "thinwire/config/semantics.h"
#include "thinwire/core/dtype.h"

namespace thinwire::train_gpt {

/// How the ranks of a run reach each other.
enum class CommChoice {
  kEnvironment,  ///< What launched the process, or THINWIRE_COMM.
  kLocal,        ///< Ranks are threads of this process.
  kMpi,
};

/// Everything a training run is asked for. `train_gpt --help` explains.
struct Options {
  std::vector<std::string> data;
  std::string optimizer = "onebit_adam";
  std::int64_t steps = 500;
  std::int64_t batch = 8;       ///< Of one backward on one rank.
  std::int64_t accumulate = 1;  ///< Backwards per step.
  std::int64_t context = 64;
  std::int64_t layers = 4;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  double lr = 1.5e-3;  ///< The optimizer's own, where no flag says otherwise.
  std::int64_t warmup_steps = 50;
  double weight_decay = 0;
  double clip = 1.0;  ///< 0: never.
  std::uint64_t seed = 1;
  /// Steps from one validation to the next, 0: only after the last step; not
  /// given: ten times in the run.
  std::optional<std::int64_t> validate_every{};
  std::int64_t validate_bytes = 64 * 1024;  ///< Predicted by one validation.
  std::int64_t freeze_step = 100;           ///< Or optim::kAutoFreeze.
  std::int64_t var_freeze_step = 250;       ///< Of 0/1 Adam.
  std::int64_t local_steps = 4;  ///< At most, from one sync to the next.
  config::Semantics semantics = config::Semantics::kCorrected;
  DType precision = DType::kFloat32;
  std::int64_t zero = 0;  ///< Stage: 0, 1, 2.
  bool offload = false;   ///< Masters and states, to host memory.
  /// What --config says beside these flags, and what became of its keys.
  config::Config file{};
  std::vector<config::KeyNote> file_keys{};
  std::vector<std::string> set{};  ///< KEY=VALUE of the object "thinwire".
  bool has_file = false;           ///< `file` was given.
  bool file_schedules = false;     ///< It decides the learning rates,
  bool file_sizes = false;         ///< and the batch.
  std::vector<std::string> idle_flags{};  ///< Given, but without effect.
  /// By a flag or the file; else they are derived from the steps.
  bool names_freeze_step = false;
  bool names_var_freeze_step = false;
  bool names_local_steps = false;
  std::string out = "out/train_gpt";
  Saving saving{};
  bool quiet = false;
  CommChoice comm = CommChoice::kEnvironment;
  int ranks = 1;  ///< With CommChoice::kLocal.
};

/// The last exact step of the 1-bit optimizers in a run of so many steps, where
/// no flag says otherwise: a fifth of them, but not before the learning rate's
/// warm-up ends; unlike optim::freeze_step_of_run() without a bound above.
[[nodiscard]] std::int64_t default_freeze_step(std::int64_t steps,
                                               std::int64_t warmup_steps);

/// The settings that decide a run's result, by flag name, in a fixed order:
/// what ranks compare, reports show and config.json holds. That of --set is a
/// JSON array.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> settings_of(
    const Options& options);

/// "fp32", "fp16", "bf16": the values of --precision.
[[nodiscard]] std::string_view precision_name(DType dtype) noexcept;
[[nodiscard]] std::optional<DType> precision_from(
    std::string_view name) noexcept;

}  // namespace thinwire::train_gpt

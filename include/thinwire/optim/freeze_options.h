// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "thinwire/optim/run_length.h"

namespace thinwire::optim {

/// End of the exact steps of 1-bit Adam, lean 1-bit Adam and 1-bit LAMB. Files,
/// Python and errors call the fields freeze_step, min_freeze_step,
/// max_freeze_step and freeze_ratio.
struct FreezeOptions {
  /// Number of exact steps, >= 1, or kAutoFreeze. If unset, it is a fifth of
  /// total_steps, at most 1000 (run_length.h), or 100000 without total_steps.
  /// After a load, a value that is set determines the stage, and an unset value
  /// is replaced by the state's.
  std::optional<std::int64_t> step{};
  /// Steps of the learning rate's warm-up, >= 0. kAutoFreeze does not freeze
  /// before its end.
  std::optional<std::int64_t> lr_warmup_steps{};
  /// Steps of the run, >= 1. kAutoFreeze does not freeze in the first tenth of
  /// them.
  std::optional<std::int64_t> total_steps{};
  /// Step (>= 1) before which kAutoFreeze does not freeze. If a fifth of
  /// total_steps is less, that is used.
  std::int64_t min_step = 100;
  /// Last step (>= 1) at which kAutoFreeze freezes, but not before the first
  /// step at which it may. If unset, it is a fifth of total_steps, or 100000
  /// without total_steps.
  std::optional<std::int64_t> max_step{};
  /// Ratio in (0, 1] of the variance's L1 norms now and w steps ago. w is half
  /// of the steps so far, but at least 50. kAutoFreeze freezes when the norms
  /// are within this ratio.
  double ratio = 0.85;
  /// Bits per element, in each direction, in which exact steps average
  /// gradients: 0 (exact), 4 or 8. Rounding errors are sent later and become
  /// part of the residuals of compressed steps. If unset, it is 8 if
  /// total_steps is set and step is not, otherwise 0. After a load, an unset
  /// value is replaced by the state's. A single rank sends nothing. A skipped
  /// step sets the residuals to 0. Lean 1-bit Adam sends parameters in the same
  /// number of bits, and after a load its options decide.
  std::optional<int> warmup_bits{};

  /// Checks the options. Throws Error(kInvalidArgument) naming the key, its
  /// range and its value.
  void validate() const;

  bool operator==(const FreezeOptions&) const = default;
};

/// Returns the last exact step, which is `step` if set, possibly kAutoFreeze.
/// Otherwise the rule of run_length.h decides.
[[nodiscard]] constexpr std::int64_t freeze_step_of(
    const FreezeOptions& options) {
  return options.step.value_or(options.total_steps
                                   ? freeze_step_of_run(*options.total_steps)
                                   : kDefaultFreezeStep);
}

/// Returns the bits in which exact steps average gradients, or 0 for exact
/// averages.
[[nodiscard]] constexpr int warmup_bits_of(const FreezeOptions& options) {
  return options.warmup_bits.value_or(
      options.total_steps && !options.step ? kWarmupBitsOfRun : 0);
}

}  // namespace thinwire::optim

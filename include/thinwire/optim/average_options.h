// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "thinwire/optim/run_length.h"

namespace thinwire::optim {

/// Averaging of gradients in every step of an exact optimizer: exactly, in 4 or
/// 8 bits, or as low-rank products. Rounding errors and remainders are kept as
/// residuals and sent later. A single rank sends nothing. The options must be
/// equal on all ranks.
struct AverageOptions {
  /// Bits per element in each direction: 0 (exact), 4 or 8.
  int bits = 0;
  /// Largest number of columns of a factor, in [0, 64]; 0: no products.
  /// Excludes `bits`.
  int low_rank = 0;
  /// Number of first steps, >= 0, that average in `first_bits` bits if
  /// `low_rank` is set. If unset, first_steps_of() decides.
  std::optional<std::int64_t> first_steps{};
  int first_bits = 4;  ///< 4 or 8.
  /// Steps of the run, >= 1, if known.
  std::optional<std::int64_t> total_steps{};

  /// Returns whether gradients are sent exactly.
  [[nodiscard]] bool is_exact() const noexcept {
    return bits == 0 && low_rank == 0;
  }
  /// Checks the options. Throws Error(kInvalidArgument) with the field, its
  /// range and its value.
  void validate() const;
  /// Returns one line with all options that must be equal on all ranks, or
  /// nothing if gradients are sent exactly.
  [[nodiscard]] std::string describe() const;

  bool operator==(const AverageOptions&) const = default;
};

/// Returns first_steps or, if unset, the number from the rule in run_length.h.
[[nodiscard]] constexpr std::int64_t first_steps_of(
    const AverageOptions& options) {
  return options.first_steps.value_or(
      first_low_rank_steps_of_run(options.total_steps.value_or(1)));
}

}  // namespace thinwire::optim

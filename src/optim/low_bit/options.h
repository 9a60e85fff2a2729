// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "optim/low_bit/layout.h"
#include "thinwire/exchange/compressed_all_reduce.h"
#include "thinwire/optim/adam.h"
#include "thinwire/optim/compression_options.h"
#include "thinwire/optim/freeze_options.h"

namespace thinwire::optim {

/// Number of bits in which exact steps average gradients, or 0 if they average
/// exactly.
struct WarmupBits {
  std::optional<int> named{};  ///< The caller's choice, if any.
  int planned = 0;             ///< The number that follows from all options.
  /// Whether each step passes its residuals to the momentum, instead of the
  /// freeze.
  bool hands_over_each_step = false;
};

/// Options of every low-bit optimizer, in the form that its parts use.
struct LowBitSettings {
  std::string name;         ///< "onebit_adam", in messages and saved state.
  std::string own_options;  ///< Line with the options of this optimizer alone.
  AdamOptions adam;
  std::vector<LowBitGroup> groups;
  DType residual_dtype = DType::kFloat32;
  double denom_floor = 0;
  /// A block is searched for outliers if its gradient's norm exceeds this many
  /// medians of its denominators, times Adam's own bound (denominator.h).
  double outlier_gate = 10;
  ExchangeOptions exchange;
  WarmupBits warmup_bits{};

  /// Checks the options that CompressionOptions::validate() cannot check.
  /// Throws Error(kInvalidArgument) with the field, its range and its value.
  void validate(const ParameterLayout& layout) const;
  /// Returns the text that ranks compare before their first exchange.
  [[nodiscard]] std::string describe() const;
};

/// Returns the options of the update rule, which are part of an optimizer's
/// public options.
template <class Options>
[[nodiscard]] AdamOptions adam_options(const Options& options) {
  return {.learning_rate = options.learning_rate,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .epsilon = options.epsilon,
          .weight_decay = options.weight_decay,
          .decoupled_decay = true,
          .bias_correction = options.bias_correction,
          .epsilon_inside_sqrt = options.epsilon_inside_sqrt,
          .groups = {options.groups.begin(), options.groups.end()}};
}

/// Returns the number as text, or "none".
[[nodiscard]] inline std::string text_of(std::optional<std::int64_t> number) {
  return number ? std::to_string(*number) : "none";
}

/// Returns the settings for public options. The fields that optimizers share
/// have the same names in all of them.
template <class Options>
[[nodiscard]] LowBitSettings low_bit_settings(std::string name,
                                              std::string own_options,
                                              const Options& options) {
  const CompressionOptions& compression = options.compression;
  LowBitSettings settings{
      .name = std::move(name),
      .own_options = std::move(own_options),
      .adam = adam_options(options),
      .groups = {},
      .residual_dtype = compression.residual_dtype.value_or(DType::kFloat32),
      .denom_floor = compression.denom_floor,
      .exchange = compression.exchange};
  if constexpr (requires { options.freeze; })
    settings.warmup_bits = {options.freeze.warmup_bits,
                            warmup_bits_of(options.freeze)};
  else
    settings.warmup_bits = {options.warmup_bits,
                            zero_one_stages_of(options).warmup_bits, true};
  for (const auto& group : options.groups) {
    LowBitGroup& to = settings.groups.emplace_back();
    to.exp_avg_mask = group.exp_avg_mask;
    if constexpr (requires { group.non_freeze; })
      to.stays_exact = group.non_freeze;
  }
  return settings;
}

}  // namespace thinwire::optim

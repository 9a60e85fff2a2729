// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "thinwire/core/dtype.h"

namespace thinwire::zero {

/// Treatment of gradients' residuals when a step is skipped.
enum class AfterSkip {
  kAuto,   ///< Like kKeep with fp16 parameters, otherwise kClear.
  kKeep,   ///< Restores them, from a second array.
  kClear,  ///< Sets them to 0 on all ranks.
};

/// Bits per element that ZeRO sends: gradients up to their owners, parameters
/// down to all ranks. Both remainders are kept as residuals and sent later. See
/// docs/algorithms/zero.md.
struct WireOptions {
  int bits_up = 0;    ///< 0 (exact), 4 or 8.
  int bits_down = 0;  ///< 0 (exact), 4 or 8.
  /// Dtype of the residuals of gradients: kFloat32 or kBFloat16. If unset, it
  /// is kBFloat16, or kFloat32 if a Config accumulates several backwards in
  /// them.
  std::optional<DType> residual_dtype{};
  AfterSkip after_skip = AfterSkip::kAuto;

  [[nodiscard]] bool is_exact() const noexcept {
    return bits_up == 0 && bits_down == 0;
  }
  [[nodiscard]] DType residuals() const noexcept {
    return residual_dtype.value_or(DType::kBFloat16);
  }
  /// Returns whether a skipped step keeps residuals if parameters have this
  /// dtype.
  [[nodiscard]] bool keeps_residuals(DType dtype) const noexcept {
    if (after_skip == AfterSkip::kAuto) return dtype == DType::kFloat16;
    return after_skip == AfterSkip::kKeep;
  }
  /// Checks the options. Throws Error(kInvalidArgument) with the field, its
  /// range and its value. The arguments are the fields' names in the message.
  void validate(std::string_view name_up, std::string_view name_down,
                std::string_view name_dtype) const;
  bool operator==(const WireOptions&) const = default;
};

/// Returns the bits per element for gradients that the rule of buckets assumes
/// (exchange/bucket_rule.h), which is 16 if exact.
[[nodiscard]] constexpr int bucket_bits(const WireOptions& wire) noexcept {
  return wire.bits_up == 0 ? 16 : wire.bits_up;
}

}  // namespace thinwire::zero

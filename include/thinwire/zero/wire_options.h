// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "thinwire/core/dtype.h"

namespace thinwire::zero {

/// What becomes of the residuals of gradients whose step is skipped.
enum class AfterSkip {
  kAuto,   ///< kKeep with fp16 parameters, else kClear.
  kKeep,   ///< They are as if the step had not been: a second array of them.
  kClear,  ///< They become 0, on all ranks.
};

/// How many bits per element ZeRO sends: gradients up to their owners,
/// parameters down to all ranks. The rest of both is kept as residuals and sent
/// later. docs/algorithms/zero.md.
struct WireOptions {
  int bits_up = 0;    ///< 0 (exact), 4 or 8.
  int bits_down = 0;  ///< 0 (exact), 4 or 8.
  /// What residuals of gradients are kept in: kFloat32 or kBFloat16. Not given:
  /// kBFloat16, and kFloat32 if a Config adds several backwards up in them.
  std::optional<DType> residual_dtype{};
  AfterSkip after_skip = AfterSkip::kAuto;

  [[nodiscard]] bool is_exact() const noexcept {
    return bits_up == 0 && bits_down == 0;
  }
  [[nodiscard]] DType residuals() const noexcept {
    return residual_dtype.value_or(DType::kBFloat16);
  }
  /// What after_skip comes to with parameters of `dtype`.
  [[nodiscard]] bool keeps_residuals(DType dtype) const noexcept {
    if (after_skip == AfterSkip::kAuto) return dtype == DType::kFloat16;
    return after_skip == AfterSkip::kKeep;
  }
  bool operator==(const WireOptions&) const = default;
};

/// What an element of a bucket takes on the way up, for the rule of buckets
/// (compress/bucket_rule.h).
[[nodiscard]] constexpr int bucket_bits(const WireOptions& wire) noexcept {
  return wire.bits_up == 0 ? 16 : wire.bits_up;
}

}  // namespace thinwire::zero

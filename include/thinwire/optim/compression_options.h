// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "thinwire/core/dtype.h"
#include "thinwire/optim/data_parallel.h"

namespace thinwire::optim {

/// Compressed steps of the low-bit optimizers, and the exchange of all steps.
struct CompressionOptions {
  /// Smallest denominator after the freeze, as a fraction of its block's RMS
  /// (in lean 1-bit Adam: its cell's). Finite, >= 0; 0 for no floor. 0/1 Adam
  /// also applies it before the freeze.
  double denom_floor = 0.3;
  /// Dtype of the residuals: kFloat32 or kBFloat16. If unset, it is kBFloat16
  /// in lean 1-bit Adam, and kFloat32 otherwise.
  std::optional<DType> residual_dtype{};
  /// Options of the exchange. 0/1 Adam compares at the first sync after
  /// `verify_every` steps.
  ExchangeOptions exchange{};

  /// Checks the options. Throws Error(kInvalidArgument) naming the key, its
  /// range and its value.
  void validate() const;

  bool operator==(const CompressionOptions&) const = default;
};

}  // namespace thinwire::optim

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace thinwire::outer {

/// Settings of OuterLoop, which must be equal on all ranks.
struct OuterOptions {
  /// Local steps between two syncs, >= 1. In a Config, 0 means that there is no
  /// outer loop. Longer intervals increase the loss, so choose the smallest
  /// value for which the network is fast enough.
  std::int64_t sync_every = 0;
  /// Number of local steps, >= 0, after which the interval doubles, from 1 up
  /// to sync_every. With 0 the interval is always sync_every.
  std::int64_t sync_growth = 0;
  /// Step size of the outer optimizer, finite, > 0.
  double learning_rate = 1;
  /// Nesterov momentum of the outer optimizer, in [0, 1). With learning_rate =
  /// 1 and momentum = 0 a sync averages parameters.
  double momentum = 0;
  int bits_up = 4;    ///< Bits per element of pseudo-gradients: 0, 4 or 8.
  int bits_down = 4;  ///< Bits per element of their result: 0, 4 or 8.
  /// Number of first steps, >= 0, in which ranks average gradients instead.
  std::int64_t warmup_steps = 0;
  int warmup_bits = 8;  ///< Bits of gradients in those steps: 0, 4 or 8.

  /// Checks the options. Throws Error(kInvalidArgument) with the field, its
  /// range and its value.
  void validate() const;
  /// Returns one line with all options.
  [[nodiscard]] std::string describe() const;

  bool operator==(const OuterOptions&) const = default;
};

}  // namespace thinwire::outer

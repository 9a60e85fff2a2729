// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "optim/low_bit/model.h"
#include "thinwire/core/buffer.h"
#include "thinwire/exchange/active_mask.h"

namespace thinwire::optim {

/// One rank's residuals, block after block: the worker's, for the blocks that
/// it encodes, and the server's, for the blocks that it serves.
struct RankResiduals {
  Buffer worker;
  Buffer server;
  double clip = 1;  ///< Clip factor of the last step, for gradients'.
};

struct ResidualViews {
  ConstView worker;
  ConstView server;
};

/// Residuals that a single rank has restored from a state of several ranks. It
/// does not compress, so it adds them to its first update: y = x + e + d.
class RestoredResiduals {
 public:
  explicit RestoredResiduals(LowBitModel& model) : model_(model) {}

  [[nodiscard]] bool empty() const { return !residuals_; }
  [[nodiscard]] std::optional<ResidualViews> views() const;
  void restore(RankResiduals&& residuals) {
    if (!residuals.worker.empty()) residuals_ = std::move(residuals);
  }
  /// Returns the residuals and leaves this object empty.
  [[nodiscard]] std::optional<RankResiduals> release() {
    return std::exchange(residuals_, std::nullopt);
  }

  /// Returns the sum of both residuals of block `b`, with 0 for inactive
  /// elements, and sets the residuals to 0. They must not be empty.
  [[nodiscard]] std::vector<float> take(std::size_t b,
                                        const std::uint32_t* active);
  /// Adds the residuals of all elements to `x` and releases them. A block's
  /// residuals are in its unit, which is 1 if `units` is empty.
  void add_to(std::span<float> x, const exchange::ActiveMask& active = {},
              std::span<const float> units = {});

 private:
  LowBitModel& model_;
  std::optional<RankResiduals> residuals_;
};

}  // namespace thinwire::optim

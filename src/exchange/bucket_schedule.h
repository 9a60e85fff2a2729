// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "thinwire/core/parameter_layout.h"

namespace thinwire::exchange {

/// Cuts a flat array on the grid of sums into buckets of at least
/// `bucket_elements`.
[[nodiscard]] std::vector<Range> equal_buckets(std::size_t size,
                                               std::size_t bucket_elements);

/// Order in which buckets of gradients are sent, which is the same on all
/// ranks: the last bucket first, as backward computes them.
class BucketSchedule {
 public:
  /// `buckets` are ranges of the flat array in ascending order; they may leave
  /// gaps.
  BucketSchedule(const ParameterLayout& layout, std::vector<Range> buckets);

  /// Marks all parameters as not ready and all buckets as not sent.
  void begin();
  [[nodiscard]] bool is_ready(std::size_t parameter) const {
    return ready_[parameter];
  }
  void mark_ready(std::size_t parameter);
  /// Marks a parameter as ready in this bucket only.
  void mark_part_ready(std::size_t parameter, std::size_t bucket);

  /// Returns the next bucket in order if all its parameters are ready. The
  /// caller then sends it.
  [[nodiscard]] std::optional<std::size_t> take_complete();
  /// Returns the last parameter of the next bucket that is not ready yet.
  [[nodiscard]] std::optional<std::size_t> waiting_for() const;
  /// Returns the number of buckets that have not been taken, which are [0,
  /// left()).
  [[nodiscard]] std::size_t left() const noexcept { return left_; }

  [[nodiscard]] const std::vector<Range>& ranges() const noexcept {
    return buckets_;
  }
  /// Returns the buckets that hold elements of a parameter.
  [[nodiscard]] Range buckets_of(std::size_t parameter) const;

 private:
  const ParameterLayout* layout_;
  std::vector<Range> buckets_;
  std::vector<std::size_t> pending_;  // per bucket: parameters not ready
  std::vector<bool> ready_;           // per parameter
  std::size_t left_ = 0;
};

}  // namespace thinwire::exchange

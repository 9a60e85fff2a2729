// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "thinwire/core/parameter_layout.h"

namespace thinwire::exchange {

/// Cuts a flat array into buckets of at least `bucket_elements`, on the grid of
/// sums.
[[nodiscard]] std::vector<Range> equal_buckets(std::size_t size,
                                               std::size_t bucket_elements);

/// Buckets of gradients, which are sent in one order on all ranks: last ones
/// first, as backward computes them.
class BucketSchedule {
 public:
  /// `buckets` are ranges of the flat array in its order, and need not cover
  /// it.
  BucketSchedule(const ParameterLayout& layout, std::vector<Range> buckets);

  /// Resets: nothing is ready, and nothing has been sent.
  void begin();
  [[nodiscard]] bool is_ready(std::size_t parameter) const {
    return ready_[parameter];
  }
  void mark_ready(std::size_t parameter);
  /// Marks a parameter that is ready in this bucket, and not yet in others.
  void mark_part_ready(std::size_t parameter, std::size_t bucket);

  /// Returns the next bucket in order if all its parameters are ready; the
  /// caller sends it.
  [[nodiscard]] std::optional<std::size_t> take_complete();
  /// Returns the last parameter of the next bucket that is not ready.
  [[nodiscard]] std::optional<std::size_t> waiting_for() const;
  /// Returns how many have not been taken: buckets [0, left()).
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

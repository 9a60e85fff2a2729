// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "thinwire/core/parameter_layout.h"

namespace thinwire::exchange {

/// A flat array cut into buckets of at least `bucket_elements`, on the grid of
/// sums.
[[nodiscard]] std::vector<Range> equal_buckets(std::size_t size,
                                               std::size_t bucket_elements);

/// Buckets of gradients, which are sent in one order on all ranks: last ones
/// first, as backward computes them.
class BucketSchedule {
 public:
  /// Ranges of the flat array in its order; they need not cover it.
  BucketSchedule(const ParameterLayout& layout, std::vector<Range> buckets);

  /// Nothing is ready, and nothing has been sent.
  void begin();
  [[nodiscard]] bool is_ready(std::size_t parameter) const {
    return ready_[parameter];
  }
  void mark_ready(std::size_t parameter);
  /// For a parameter that gets ready bucket by bucket: it is not waited for in
  /// this bucket any more.
  void mark_part_ready(std::size_t parameter, std::size_t bucket);

  /// The next bucket in order if all its parameters are ready; it is the
  /// caller's to send.
  [[nodiscard]] std::optional<std::size_t> take_complete();
  /// The last parameter of the next bucket that is not ready.
  [[nodiscard]] std::optional<std::size_t> waiting_for() const;
  /// Buckets [0, left()) have not been taken.
  [[nodiscard]] std::size_t left() const noexcept { return left_; }

  [[nodiscard]] const std::vector<Range>& ranges() const noexcept {
    return buckets_;
  }
  /// The buckets that hold elements of a parameter.
  [[nodiscard]] Range buckets_of(std::size_t parameter) const;

 private:
  const ParameterLayout* layout_;
  std::vector<Range> buckets_;
  std::vector<std::size_t> pending_;  // per bucket: parameters not ready
  std::vector<bool> ready_;           // per parameter
  std::size_t left_ = 0;
};

}  // namespace thinwire::exchange

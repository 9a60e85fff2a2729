// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "thinwire/core/parameter_layout.h"

namespace thinwire::engine {

/// The flat gradients cut into equal buckets, which leave in one order on all
/// ranks: last ones first, as backward computes them.
class GradientBuckets {
 public:
  /// Buckets of at least `bucket_elements`, on the grid of sums.
  GradientBuckets(const ParameterLayout& layout, std::size_t bucket_elements);

  /// Nothing is ready, and nothing has left.
  void begin();
  [[nodiscard]] bool is_ready(std::size_t parameter) const {
    return ready_[parameter];
  }
  void mark_ready(std::size_t parameter);

  /// The next bucket in order if all its parameters are ready; it has left
  /// then.
  [[nodiscard]] std::optional<Range> take_complete();
  /// The next bucket in order, ready or not; it has left then.
  [[nodiscard]] std::optional<Range> take_any();
  /// The last parameter of the next bucket that is not ready.
  [[nodiscard]] std::optional<std::size_t> waiting_for() const;

 private:
  [[nodiscard]] Range range(std::size_t bucket) const;
  [[nodiscard]] Range buckets_of(const Parameter& parameter) const;

  const ParameterLayout& layout_;
  std::size_t bucket_elements_;
  std::vector<std::size_t> pending_;  // per bucket: parameters not ready
  std::vector<bool> ready_;           // per parameter
  std::size_t left_ = 0;              // buckets that have not left
};

}  // namespace thinwire::engine

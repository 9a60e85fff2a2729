// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "thinwire/core/view.h"

namespace thinwire::checkpoint {

/// A mean of the ranks' values. It is summed in double in the order of the
/// calls, divided, and rounded once to the dtype of the result.
class MeanOfRanks {
 public:
  explicit MeanOfRanks(std::size_t size)
      : sums_(size), floats_(size), ranks_(size) {}

  /// Adds a rank's values, the first of which is that of element `first`.
  void add(ConstView values, std::size_t first);
  /// Returns whether `ranks` ranks had a value of every element.
  [[nodiscard]] bool is_of(std::size_t ranks) const;
  /// Writes the mean of the values added so far. to.size() must be `size`.
  void write(View to);

 private:
  std::vector<double> sums_;
  std::vector<float> floats_;
  std::vector<std::uint32_t> ranks_;  // per element
};

}  // namespace thinwire::checkpoint

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/state.h"

namespace thinwire::checkpoint {

/// A mean of the ranks' values. It is summed in double in the order of the
/// calls, divided, and rounded once to the dtype of the result.
class MeanOfRanks {
 public:
  explicit MeanOfRanks(std::size_t size)
      : sums_(size), floats_(size), ranks_(size) {}

  /// A rank's values of some elements, which begin with `first`.
  void add(ConstView values, std::size_t first = 0);
  /// So many ranks had a value, of every element.
  [[nodiscard]] bool is_of(std::size_t ranks) const;
  /// Writes the mean of the values added so far; to.size() must be `size`.
  void write(View to);

 private:
  std::vector<double> sums_;
  std::vector<float> floats_;
  std::vector<std::uint32_t> ranks_;  // per element
};

/// Collective: replaces every Sharing::kMean array of `state` by the ranks'
/// mean, as Sharing::kSame. Each rank holds only the values of its share, n / N
/// of them, which it writes. The arrays must have the same elements on all
/// ranks, or Error(kInvalidArgument) is thrown on all. In a hierarchical state
/// they may be pieces. Then the mean is over the hosts, as Sharing::kSharded,
/// and each rank has its share of its piece.
void replace_by_means(comm::Communicator& comm, optim::State& state);

}  // namespace thinwire::checkpoint

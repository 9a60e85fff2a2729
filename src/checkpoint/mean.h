// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/state.h"

namespace thinwire::checkpoint {

/// The mean of what ranks have: summed in double, in the order of the calls,
/// divided, and rounded once to the dtype that it is written in.
class MeanOfRanks {
 public:
  explicit MeanOfRanks(std::size_t size)
      : sums_(size), floats_(size), ranks_(size) {}

  /// A rank's values of some elements, which begin with `first`.
  void add(ConstView values, std::size_t first = 0);
  /// So many ranks had a value, of every element.
  [[nodiscard]] bool is_of(std::size_t ranks) const;
  /// Of the values added so far; to.size() must be `size`.
  void write(View to);

 private:
  std::vector<double> sums_;
  std::vector<float> floats_;
  std::vector<std::uint32_t> ranks_;  // per element
};

/// Collective: in place of every Sharing::kMean array of `state` the ranks'
/// mean, Sharing::kSame. Each rank has the values of its share only, which is
/// what it writes: n / N of them. The arrays must speak of the same elements on
/// all ranks, or Error(kInvalidArgument) is thrown on all. Of a state by host
/// they may be pieces: then the mean is over the hosts, Sharing::kSharded, and
/// each rank has its share of its piece.
void replace_by_means(comm::Communicator& comm, optim::State& state);

}  // namespace thinwire::checkpoint

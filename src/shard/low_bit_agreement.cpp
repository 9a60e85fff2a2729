// SPDX-License-Identifier: Apache-2.0
// Before any gradient leaves: whether all of them are finite.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/set_to_zero.h"
#include "optim/exact_exchange.h"
#include "shard/low_bit_gradients.h"

namespace thinwire::shard {

// Index of the first unit that is not finite, else -1.
std::int64_t LowBitGradients::first_nonfinite() const {
  bool is_finite = true;
  for (const std::size_t b : waiting_) {
    const Range range = shards_.buckets()[b].range;
    is_finite =
        is_finite && std::isfinite(optim::sum_of_squares(
                         pool_, sums_.subview(range.offset, range.size)));
  }
  if (is_finite) return -1;
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (!std::isfinite(optim::sum_of_squares(
            pool_, sums_.subview(units_[u].offset, units_[u].size))))
      return static_cast<std::int64_t>(u);
  return -1;
}

// Collective. False: no gradient leaves, and nothing changes but what the step
// looks at, where the first such parameter of any rank is marked.
bool LowBitGradients::agree_on_finite() {
  const std::int64_t own = first_nonfinite();
  const auto count = static_cast<std::int64_t>(units_.size());
  std::int64_t most = own < 0 ? 0 : count - own;
  comm_.all_reduce(std::span(&most, 1), comm::ReduceOp::kMax);
  if (most == 0) return true;
  set_to_zero(means_.view());
  mark_nonfinite(units_[static_cast<std::size_t>(count - most)]);
  return false;
}

void LowBitGradients::mark_nonfinite(const Range& unit) {
  for (std::size_t b = 0; b < shards_.buckets().size(); ++b) {
    const Range own =
        shards_.buckets()[b].pieces[static_cast<std::size_t>(comm_.rank())];
    const std::size_t begin = std::max(own.offset, unit.offset);
    const std::size_t end = std::min(own.end(), unit.end());
    if (begin >= end) continue;
    const auto values =
        piece(b).subview(begin - own.offset, end - begin).as<float>();
    std::ranges::fill(values, std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace thinwire::shard

// SPDX-License-Identifier: Apache-2.0
#include "optim/frozen_variance.h"

#include "thinwire/kernels/adam.h"

namespace thinwire::optim {

std::vector<float> apply_denominator_floor(std::span<float> denominator,
                                           const compress::BlockLayout& blocks,
                                           double fraction, ThreadPool& pool) {
  std::vector<float> floors(blocks.blocks().size());
  pool.for_each(floors.size(), [&](std::size_t b) {
    const Range& values = blocks.blocks()[b].values;
    floors[b] = kernels::floor_denominator(denominator.data() + values.offset,
                                           values.size, fraction);
  });
  return floors;
}

std::vector<std::uint8_t> active_elements(
    std::span<const float> exp_avg_sq, std::span<const Range> ranges,
    const std::function<float(std::size_t)>& mask) {
  std::vector<std::uint8_t> active(exp_avg_sq.size(), 1);
  bool everything = true;
  for (const Range& range : ranges)
    for (std::size_t i = range.offset; i < range.end(); ++i)
      if (exp_avg_sq[i] == 0 || mask(i) == 0) {
        active[i] = 0;
        everything = false;
      }
  if (everything) active.clear();
  return active;
}

}  // namespace thinwire::optim

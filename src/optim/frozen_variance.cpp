// SPDX-License-Identifier: Apache-2.0
#include "optim/frozen_variance.h"

#include <algorithm>
#include <cmath>

#include "thinwire/kernels/norm.h"

namespace thinwire::optim {

void apply_denominator_floor(std::span<float> denominator,
                             const compress::BlockLayout& blocks,
                             double fraction) {
  if (fraction == 0) return;
  for (const compress::Block& block : blocks.blocks()) {
    const auto d = denominator.subspan(block.values.offset, block.values.size);
    double sum = 0;
    for (std::size_t c = 0; c < kernels::sum_chunks(d.size()); ++c)
      sum += kernels::chunk_sum_of_squares(d, c);
    const double rms = std::sqrt(sum / static_cast<double>(d.size()));
    const auto floor = static_cast<float>(fraction * rms);
    for (float& value : d) value = std::max(value, floor);
  }
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

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "thinwire/core/parameter_layout.h"

namespace thinwire::zero {

/// Cuts a bucket into nearly equal pieces of whole cells of the grid of sums
/// (kernels::kSumChunk). Remaining cells go to the next places from `turn` on,
/// which the function advances. Otherwise the same places would get the
/// remaining cells of every bucket.
[[nodiscard]] std::vector<Range> cut_on_grid(Range range, std::size_t ranks,
                                             std::size_t& turn);

}  // namespace thinwire::zero

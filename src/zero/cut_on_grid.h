// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "thinwire/core/parameter_layout.h"

namespace thinwire::zero {

/// Cuts a bucket into pieces of whole cells of the grid of sums
/// (kernels::kSumChunk), nearly equal. Cells that are left over go to the
/// places in turn, from `turn` on, which it advances. Otherwise the same places
/// would get them from every bucket.
[[nodiscard]] std::vector<Range> cut_on_grid(Range range, std::size_t ranks,
                                             std::size_t& turn);

}  // namespace thinwire::zero

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "thinwire/compress/block_layout.h"
#include "thinwire/core/thread_pool.h"

/// What a low-bit optimizer divides by once the variance no longer moves.
namespace thinwire::optim {

/// Raises every block's denominators to `fraction` of the block's RMS, and
/// returns that floor per block. Without it, coordinates whose gradient is
/// rounding noise get +-scale divided by next to nothing.
std::vector<float> apply_denominator_floor(std::span<float> denominator,
                                           const compress::BlockLayout& blocks,
                                           double fraction, ThreadPool& pool);

/// 1 where an element takes part, 0 where `mask(i)` is 0 or the variance never
/// left 0; empty if all of `ranges` take part.
[[nodiscard]] std::vector<std::uint8_t> active_elements(
    std::span<const float> exp_avg_sq, std::span<const Range> ranges,
    const std::function<float(std::size_t)>& mask);

}  // namespace thinwire::optim

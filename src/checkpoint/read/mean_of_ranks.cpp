// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read/mean_of_ranks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "thinwire/kernels/cast.h"

namespace thinwire::checkpoint {

namespace {

// If `x` is not exactly a float, returns the neighbouring float whose last bit
// is 1. Rounding that float or `x` to 16 bits gives the same result.
float rounded_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || !std::isfinite(nearest))
    return nearest;
  const float below = std::abs(static_cast<double>(nearest)) > std::abs(x)
                          ? std::nextafter(nearest, 0.0f)
                          : nearest;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(below) | 1u);
}

}  // namespace

void MeanOfRanks::add(ConstView values, std::size_t first) {
  const auto own = std::span(floats_).subspan(first, values.size());
  kernels::convert(values, own);
  for (std::size_t i = 0; i < own.size(); ++i) {
    sums_[first + i] += own[i];
    ++ranks_[first + i];
  }
}

bool MeanOfRanks::is_of(std::size_t ranks) const {
  return std::ranges::all_of(ranks_,
                             [&](auto count) { return count == ranks; });
}

void MeanOfRanks::write(View to) {
  const bool is_float = to.dtype() == DType::kFloat32;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const double mean = sums_[i] / ranks_[i];
    floats_[i] = is_float ? static_cast<float>(mean) : rounded_to_odd(mean);
  }
  kernels::convert(floats_, to);
}

}  // namespace thinwire::checkpoint

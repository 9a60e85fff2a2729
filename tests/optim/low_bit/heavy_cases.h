// SPDX-License-Identifier: Apache-2.0
// Gradients with elements far above the others of their block.
#pragma once

#include <vector>

#include "optim/low_bit/late_cases.h"

namespace thinwire::test {

/// late_gradient() of late_layout(), where a few elements are larger than the
/// others of their block by 50 and more times, and the variance of one is not
/// finite.
inline std::vector<float> heavy_gradient(const ParameterLayout& layout,
                                         std::int64_t t, int rank) {
  std::vector<float> values = late_gradient(layout, t, rank);
  for (const Parameter& p : layout.parameters()) {
    const auto at = [&](std::size_t i) -> float& {
      return values[p.offset + i];
    };
    if (p.name == "common") {
      at(17) *= 1e4f;
      at(18) *= 50;
    }
    if (p.name == "rows") {
      at(3) *= 1e8f;
      at(2050) *= 1e3f;
    }
    if (p.name == "tail" && t == kLateFreeze) at(2) = 1e25f;
  }
  return values;
}

/// late_gradient(), and after the freeze single elements of single ranks that
/// are large in one step; one of them belongs to an element that is late.
inline std::vector<float> spiked_gradient(const ParameterLayout& layout,
                                          std::int64_t t, int rank) {
  std::vector<float> values = late_gradient(layout, t, rank);
  if (rank != 0) return values;
  for (const Parameter& p : layout.parameters()) {
    const auto at = [&](std::size_t i) -> float& {
      return values[p.offset + i];
    };
    if (p.name == "common" && t == kLateFreeze + 1) at(41) = 1e6f;
    if (p.name == "common" && t == kFirstLate + 1) at(40) = -1e4f;
    if (p.name == "rows" && t == kFirstLate) at(1030) = 1e8f;
    if (p.name == "tail" && t == kLateFreeze + 3) at(5) = 200;
  }
  return values;
}

/// Gradients of late_layout().
struct NamedGradients {
  const char* name;
  std::vector<float> (*of)(const ParameterLayout&, std::int64_t t, int rank);
};

/// "all_late": the freeze finds no gradient at all.
inline const std::vector<NamedGradients>& named_gradients() {
  static const std::vector<NamedGradients> all = {
      {"all_there", [](const ParameterLayout& layout, std::int64_t t,
                       int rank) { return gradient(layout.size(), t, rank); }},
      {"late", late_gradient},
      {"all_late",
       [](const ParameterLayout& layout, std::int64_t t, int rank) {
         return t <= kLateFreeze ? std::vector<float>(layout.size())
                                 : late_gradient(layout, t, rank);
       }},
      {"heavy", heavy_gradient},
      {"spiked", spiked_gradient}};
  return all;
}

}  // namespace thinwire::test

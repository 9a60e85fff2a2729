// SPDX-License-Identifier: Apache-2.0
// Gradients of which some elements get their first one after the freeze.
#pragma once

#include <string>
#include <vector>

#include "optim/support.h"

namespace thinwire::test {

/// The last exact step of the runs with these gradients.
constexpr std::int64_t kLateFreeze = 3;
/// "dead" and the second block of "rows" get gradients from this step on, at
/// first from one rank; every fifth element of "common" in the next one.
constexpr std::int64_t kFirstLate = kLateFreeze + 2;

/// Two groups; "rows" has three blocks, of which the second is without any
/// gradient at first, as is all of "dead".
inline ParameterLayout late_layout() {
  return ParameterLayout::of({{"common", {1300}, 0},
                              {"rows", {3, 1024}, 0},
                              {"dead", {70}, 1},
                              {"scalar", {}, 1},
                              {"never", {9}, 0},
                              {"tail", {33}, 1}});
}

struct LateElement {
  bool is_late = false;
  std::int64_t first = 0;  ///< Step of its first gradient; 0: never.
};

inline LateElement late_element(const Parameter& p, std::size_t i) {
  if (p.name == "never") return {true, 0};
  if (p.name == "dead") return {true, kFirstLate};
  if (p.name == "rows" && i >= 1024 && i < 2048) return {true, kFirstLate};
  if (p.name == "common" && i % 5 == 0) return {true, kFirstLate + 1};
  return {};
}

/// 0 until then; in the step itself rank 0 alone has a gradient. Some zeros
/// have a sign, which makes no gradient of them.
inline std::vector<float> late_gradient(const ParameterLayout& layout,
                                        std::int64_t t, int rank) {
  std::vector<float> values = gradient(layout.size(), t, rank);
  for (const Parameter& p : layout.parameters())
    for (std::size_t i = 0; i < p.size; ++i) {
      const LateElement late = late_element(p, i);
      if (!late.is_late) continue;
      const bool out =
          late.first == 0 || t < late.first || (t == late.first && rank != 0);
      if (out) values[p.offset + i] = i % 2 == 0 ? -0.0f : 0.0f;
    }
  return values;
}

// ---- elements far above the others of their block

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

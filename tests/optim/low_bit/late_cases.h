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

}  // namespace thinwire::test

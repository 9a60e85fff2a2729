// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinwire::exchange {

/// Where a backward stands among those whose gradients one step takes.
struct Backward {
  bool is_first = true;  ///< Since the last step.
  /// No other one comes before the step: gradients need no room to grow, and
  /// may be sent as they come.
  bool is_last = true;
};

/// Gradients that could not be sent while backward went on.
struct LateGradients {
  /// Elements not yet sent when backward ended, and the index of the parameter
  /// they waited for (-1: none).
  std::size_t elements = 0;
  std::int64_t parameter = -1;
};

}  // namespace thinwire::exchange

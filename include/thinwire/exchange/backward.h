// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinwire::exchange {

/// Place of a backward among those whose gradients one step uses.
struct Backward {
  bool is_first = true;  ///< First one since the last step.
  /// Last one before the step: gradients do not need to be accumulated further,
  /// and may be sent as soon as they exist.
  bool is_last = true;
};

/// Gradients that could not be sent during backward.
struct LateGradients {
  /// Elements not yet sent when backward ended, and the index of the parameter
  /// that they waited for, or -1 if there was none.
  std::size_t elements = 0;
  std::int64_t parameter = -1;
};

}  // namespace thinwire::exchange

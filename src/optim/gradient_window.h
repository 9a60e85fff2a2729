// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/backward.h"

namespace thinwire::optim {

/// What has happened between two steps: which backwards there were, and which
/// gradients have come in the one that goes on. Its functions throw
/// Error(kFailedPrecondition) before anything changes.
class GradientWindow {
 public:
  explicit GradientWindow(const ParameterLayout& layout) : layout_(layout) {}

  void begin(Backward which);
  /// Throws unless this parameter's gradient may come now.
  void require_open(std::size_t parameter) const;
  void collect(std::size_t parameter);
  void end();
  /// The backward has failed: the window begins anew.
  void cancel() { restart(); }
  /// No other backward may come.
  void close() { is_complete_ = has_begun_; }
  /// A step has taken the gradients.
  void restart();

  [[nodiscard]] bool has_begun() const noexcept { return has_begun_; }
  [[nodiscard]] bool in_backward() const noexcept { return in_backward_; }
  /// Some gradients are there, and none are coming now.
  [[nodiscard]] bool awaits_step() const noexcept {
    return has_begun_ && !in_backward_;
  }
  [[nodiscard]] bool is_complete() const noexcept { return is_complete_; }
  /// The backward that goes on, or was the last.
  [[nodiscard]] Backward backward() const noexcept { return backward_; }

 private:
  const ParameterLayout& layout_;
  bool has_begun_ = false;  // at least one backward
  bool in_backward_ = false;
  bool is_complete_ = false;  // no other backward may come
  Backward backward_;
  std::vector<bool> has_come_;  // in this backward, per parameter
};

}  // namespace thinwire::optim

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace thinwire::engine {

/// While it lives, these signals set a flag of the process and do nothing else.
/// A second one of a kind does what it did before. Several may live at once, as
/// where ranks are threads.
class SignalFlag {
 public:
  /// Throws Error(kUnavailable) for a signal that cannot be caught.
  explicit SignalFlag(std::vector<int> signals);
  ~SignalFlag();
  SignalFlag(const SignalFlag&) = delete;
  SignalFlag& operator=(const SignalFlag&) = delete;

  /// One of them has come since the first of those that live was made.
  [[nodiscard]] bool is_raised() const noexcept;

 private:
  std::vector<int> signals_;
};

}  // namespace thinwire::engine

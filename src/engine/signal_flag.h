// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace thinwire::engine {

/// Makes signals set a flag of the process instead of their action, as long as
/// the object exists. A second signal of a kind has its action again. Several
/// objects may exist at once, for example if ranks are threads.
class SignalFlag {
 public:
  /// Throws Error(kUnavailable) for a signal that cannot be caught.
  explicit SignalFlag(std::vector<int> signals);
  ~SignalFlag();
  SignalFlag(const SignalFlag&) = delete;
  SignalFlag& operator=(const SignalFlag&) = delete;

  /// Returns whether a signal has arrived since the first of the present
  /// objects was made.
  [[nodiscard]] bool is_raised() const noexcept;

 private:
  std::vector<int> signals_;
};

}  // namespace thinwire::engine

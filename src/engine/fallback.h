// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "thinwire/comm/communicator.h"
#include "thinwire/config/config.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::engine {

/// Judges whether compressed steps are faster than exact ones. It uses the
/// measured times of exact steps, of an exchange of zeros at the freeze, and of
/// compressed steps. The caller passes the times; this class reads no clock.
class FallbackWatch {
 public:
  /// Compressed steps are worthwhile if they take less than this share of the
  /// time.
  static constexpr double kPaysBelow = 0.98;
  /// Times of one step: the time since the end of the previous step, and its
  /// part in step() and in waits of backward.
  struct StepSeconds {
    double whole = 0;
    double step = 0;
  };
  /// Comparison of two kinds of steps, in seconds.
  struct Verdict {
    double exact = 0;
    double compressed = 0;
    /// Returns whether compressed steps take less than kPaysBelow of the time.
    [[nodiscard]] bool pays() const noexcept {
      return compressed < kPaysBelow * exact;
    }
  };
  /// Number of recent steps in a median. There is no verdict on fewer than
  /// kLeastSteps.
  static constexpr std::size_t kSteps = 20;
  static constexpr std::size_t kLeastSteps = 5;

  explicit FallbackWatch(config::Fallback what) : what_(what) {}

  /// Records an applied step. Returns a verdict once, kSteps compressed steps
  /// after the freeze, unless the run was interrupted.
  std::optional<Verdict> add(optim::Phase phase, const StepSeconds& seconds);
  /// Implements a FreezeGate. All ranks use the longest times. The first rank
  /// logs if compressed steps would not be faster. Collective.
  [[nodiscard]] bool ends_exact_stage(comm::Communicator& comm,
                                      const optim::FreezeRequest& request);
  /// Returns the message about steps after the freeze.
  [[nodiscard]] static std::string text_after(const Verdict& verdict);

  /// Forgets all times, because the next steps belong to another run.
  void forget();

 private:
  config::Fallback what_;
  std::deque<StepSeconds> exact_;
  std::deque<StepSeconds> compressed_;
  double exact_median_ = 0;  // at the freeze; 0 if unknown
};

}  // namespace thinwire::engine

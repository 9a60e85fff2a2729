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

/// Whether compressed steps pay, from steps that were measured: exact ones, an
/// exchange of zeros at the freeze, and compressed ones after it. It is told of
/// times and looks at no clock.
class FallbackWatch {
 public:
  /// Of one step: from the end of the step before it, and of that, step() and
  /// what backward has waited.
  struct StepSeconds {
    double whole = 0;
    double step = 0;
  };
  /// Two kinds of steps, in seconds.
  struct Verdict {
    double exact = 0;
    double compressed = 0;
    /// They take at most 0.98 of the time.
    [[nodiscard]] bool pays() const noexcept {
      return compressed < 0.98 * exact;
    }
  };
  /// Medians are over the last kSteps steps; of fewer than kLeastSteps nothing
  /// is said.
  static constexpr std::size_t kSteps = 20;
  static constexpr std::size_t kLeastSteps = 5;

  explicit FallbackWatch(config::Fallback what) : what_(what) {}

  /// After a step that was applied. Something to say: once, kSteps compressed
  /// steps after the freeze, of the same run.
  std::optional<Verdict> add(optim::Phase phase, const StepSeconds& seconds);
  /// As FreezeStage::set_gate() asks. Collective: all ranks take the largest
  /// times. The first rank logs where compressed steps would not pay.
  [[nodiscard]] bool ends_exact_stage(comm::Communicator& comm,
                                      const optim::FreezeRequest& request);
  /// What it says of steps after the freeze.
  [[nodiscard]] static std::string text_after(const Verdict& verdict);

  /// Another run's steps are not this one's.
  void forget();

 private:
  config::Fallback what_;
  std::deque<StepSeconds> exact_;
  std::deque<StepSeconds> compressed_;
  double exact_median_ = 0;  // at the freeze; 0: not known
};

}  // namespace thinwire::engine

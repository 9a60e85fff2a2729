// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "optim/low_bit/model.h"
#include "optim/low_bit/momentum/momentum.h"
#include "optim/low_bit/momentum/momentum_exchange.h"
#include "optim/state_parts.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/optim/freeze_options.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// Decides when the variance has settled enough to be frozen. It compares the
/// bias-corrected L1 norm with that of an earlier step. The distance is half of
/// the steps so far, but at least 50, because a running mean hardly moves over
/// a shorter window. All ranks see the same norms, because exact steps leave
/// the same variance everywhere.
class AutoFreeze {
 public:
  explicit AutoFreeze(const FreezeOptions& options = {});

  /// Records the bias-corrected L1 norm of the variance in steps 1, 2, and so
  /// on. Returns true if this step, which is still exact, is the last one.
  [[nodiscard]] bool observe(double norm);

  void list(StateParts& parts);

 private:
  std::int64_t earliest_;  // the freeze is not before this step
  std::int64_t latest_;    // the freeze is not after this step
  double ratio_;
  std::vector<double> norms_;  // norms of all steps so far
};

/// The last step of the first stage, according to options and state. A number
/// that the caller names decides the stage, even after a load. A derived or
/// default number gives way to a state's.
class StagePlan {
 public:
  StagePlan() = default;
  /// `named` may be kAutoFreeze; `planned` follows from all options.
  StagePlan(std::optional<std::int64_t> named, std::int64_t planned)
      : named_(named), own_(planned), step_(planned) {}

  /// Returns the step, which may be kAutoFreeze.
  [[nodiscard]] std::int64_t step() const { return step_; }
  /// Lists the step as `key`, the option's name. A load sets the saved step,
  /// unless the caller names one. States of Adam and LAMB have none.
  void list(StateParts& parts, const char* key);

  /// Returns whether the caller has named a step after `steps`.
  [[nodiscard]] bool names_later(std::int64_t steps) const;
  /// Returns whether the caller has named a step that has passed.
  [[nodiscard]] bool names_passed(std::int64_t steps) const;

 private:
  std::optional<std::int64_t> named_;
  std::int64_t own_ = 1;
  std::int64_t step_ = 1;
};

/// Returns a note on a load after which exact steps continue, because `planned`
/// lies ahead.
[[nodiscard]] std::string note_of_return(std::string_view option,
                                         std::int64_t planned,
                                         std::int64_t steps,
                                         bool variance_was_dropped);
/// Returns a note like "freeze_step is 3 and step 6 is past it: compression
/// begins now".
[[nodiscard]] std::string note_of_end(std::string_view option,
                                      std::int64_t planned, std::int64_t steps);

/// The step after which a 1-bit optimizer freezes its variance, and part of its
/// state. It is planned by the caller, determined by the variance, or delayed
/// by a gate.
class FreezePoint : public FreezeStage {
 public:
  FreezePoint(LowBitModel& model, const FreezeOptions& options)
      : model_(model),
        plan_(options.step, freeze_step_of(options)),
        automatic_(options) {}

  [[nodiscard]] bool is_frozen() const { return frozen_at_ > 0; }
  /// Returns the planned last exact step, or kAutoFreeze.
  [[nodiscard]] std::int64_t planned() const { return plan_.step(); }
  void set_gate(FreezeGate gate) override { gate_ = std::move(gate); }
  [[nodiscard]] std::int64_t frozen_at() const noexcept override {
    return frozen_at_;
  }

  /// Returns whether exact step `step` was the last. Call it after every exact
  /// step. It calls `norm`, which returns the bias-corrected L1 norm of the
  /// variance, only if the variance decides. Collective if it asks the gate.
  [[nodiscard]] bool is_last(std::int64_t step,
                             const std::function<double()>& norm,
                             const CompressedMomentum& momentum);
  void set_frozen(std::int64_t step) { frozen_at_ = step; }
  /// Restarts the exact steps.
  void set_exact();

  /// Completes the state of an exact rule by a history of the variance that
  /// starts now.
  static void begin_in(StateDict& state);
  /// Key of an integer that marks the state of an exact rule. No saved state
  /// has it.
  static constexpr const char* kBegins = "first_stage_begins";
  /// Returns the step of the freeze in the state.
  std::int64_t list(StateParts& parts);

  // ---- after a load: another stage than the state's
  [[nodiscard]] bool must_return(std::int64_t steps) const {
    return is_frozen() && plan_.names_later(steps);
  }
  /// Returns false if a gate has delayed the freeze. The state of an exact rule
  /// has no stages, so at least one exact step comes first.
  [[nodiscard]] bool must_end(std::int64_t steps) const {
    return !is_frozen() && !begins_ && held_until_ == 0 &&
           plan_.names_passed(steps);
  }
  [[nodiscard]] std::string note_of_end(std::int64_t steps) const;
  [[nodiscard]] std::string note_of_return(std::int64_t steps,
                                           bool variance_was_dropped) const;

 protected:
  LowBitModel& model_;

 private:
  StagePlan plan_;
  bool begins_ = false;  // whether the state was that of an exact rule
  AutoFreeze automatic_;
  std::int64_t frozen_at_ = 0;
  FreezeGate gate_;
  std::int64_t held_until_ = 0;  // first step in which the gate is asked again
};

}  // namespace thinwire::optim

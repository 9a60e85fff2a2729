// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "optim/low_bit/denominator/denominator.h"
#include "optim/low_bit/freeze/auto_freeze.h"
#include "optim/low_bit/freeze/freeze_hold.h"
#include "optim/low_bit/freeze/stage_plan.h"
#include "optim/low_bit/model.h"
#include "optim/low_bit/momentum/momentum.h"
#include "optim/low_bit/options.h"
#include "thinwire/optim/freeze_options.h"
#include "thinwire/optim/low_bit_optimizer.h"

namespace thinwire::optim {

/// Returns the fields in one line.
[[nodiscard]] std::string describe(const FreezeOptions& options);

/// The end of the warm-up stage: the variance is frozen and becomes the
/// denominator of all compressed steps that follow.
class Freeze final : public FreezeStage {
 public:
  Freeze(LowBitModel& model, const CompressedMomentum& momentum,
         const FreezeOptions& options)
      : model_(model),
        momentum_(momentum),
        plan_(options.step, freeze_step_of(options)),
        automatic_(options) {}

  [[nodiscard]] bool is_frozen() const { return frozen_at_ > 0; }
  /// Returns the last exact step that is planned, or kAutoFreeze.
  [[nodiscard]] std::int64_t planned() const { return plan_.step(); }
  [[nodiscard]] Phase phase() const {
    return is_frozen() ? Phase::kCompressed : Phase::kExact;
  }

  /// Returns, after every exact step, whether it was the last one. Collective
  /// if the gate is called.
  [[nodiscard]] bool ends_at(std::int64_t step);
  void set_gate(FreezeGate gate) override { hold_.set_gate(std::move(gate)); }
  [[nodiscard]] std::int64_t frozen_at() const noexcept override {
    return frozen_at_;
  }
  /// Sets d = max(sqrt(v / (1 - beta2^step)) + eps, floor). The variance is
  /// dropped, unless `keeps_variance`.
  void freeze(std::int64_t step, bool keeps_variance, Denominator& denominator);

  [[nodiscard]] std::string describe() const;
  void add_to(State& state, const Denominator& denominator) const;
  /// Adds to the state of an exact rule what it lacks: an empty history of the
  /// variance.
  static void begin_in(StateDict& state);
  /// The freeze in a saved state. read() throws Error(kCorruptCheckpoint).
  struct Saved {
    std::int64_t frozen_at = 0;
    std::int64_t held_until = 0;
    StagePlan plan;
    bool begins = false;  // of an exact rule, which has no stages
    AutoFreeze automatic;
    Buffer denominator;
  };
  [[nodiscard]] Saved read(StateDict& state) const;
  void restore(Saved&& saved, Denominator& denominator);

  // ---- after restore(): does the caller want another stage than the state's?
  [[nodiscard]] bool must_return(std::int64_t steps) const {
    return is_frozen() && plan_.names_later(steps);
  }
  /// A freeze that a gate has held stays held. After a state of an exact rule,
  /// one exact step comes first.
  [[nodiscard]] bool must_end(std::int64_t steps) const {
    return !is_frozen() && !begins_ && hold_.until() == 0 &&
           plan_.names_passed(steps);
  }
  [[nodiscard]] std::string note_of_end(std::int64_t steps) const {
    return optim::note_of_end("freeze_step", plan_.step(), steps);
  }
  /// Returns to exact steps after step `steps`, and undoes freeze() for
  /// variance, momentum and participation. The variance is that of the
  /// denominators. If it was kept, it is the kept one, times `kept_scale` of
  /// its group to be free of bias. Returns the note of it.
  [[nodiscard]] std::string return_to_exact(
      std::int64_t steps, Denominator& denominator,
      const std::function<float(std::size_t group)>& kept_scale = {});

 private:
  [[nodiscard]] bool is_due(std::int64_t step);

  LowBitModel& model_;
  const CompressedMomentum& momentum_;
  StagePlan plan_;
  bool begins_ = false;  // with a state of an exact rule
  AutoFreeze automatic_;
  std::int64_t frozen_at_ = 0;
  FreezeHold hold_;
};

}  // namespace thinwire::optim

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "optim/low_bit/auto_freeze.h"
#include "optim/low_bit/denominator.h"
#include "optim/low_bit/freeze_hold.h"
#include "optim/low_bit/model.h"
#include "optim/low_bit/momentum.h"
#include "thinwire/optim/low_bit_optimizer.h"

namespace thinwire::optim {

/// When the warm-up stage ends.
struct FreezeOptions {
  std::int64_t freeze_step = 0;  ///< Or kAutoFreeze.
  AutoFreeze::Options automatic;
};

/// From options whose fields on the freeze have common names.
template <class Options>
[[nodiscard]] FreezeOptions freeze_options(const Options& o) {
  const auto part_of_total = [&](std::int64_t nth, std::int64_t otherwise) {
    return o.total_steps ? (*o.total_steps + nth - 1) / nth : otherwise;
  };
  const std::int64_t fifth = part_of_total(5, 100'000);
  const std::int64_t earliest =
      std::max({o.lr_warmup_steps.value_or(0), part_of_total(10, 0),
                std::min(o.min_freeze_step, fifth)});
  return {.freeze_step = o.freeze_step,
          .automatic = {
              .earliest = earliest,
              .latest = std::max(o.max_freeze_step.value_or(fifth), earliest),
              .ratio = o.freeze_ratio}};
}

/// Throws Error(kInvalidArgument) naming the field, its range and its value.
void validate_freeze(std::int64_t freeze_step,
                     std::optional<std::int64_t> lr_warmup_steps,
                     std::optional<std::int64_t> total_steps,
                     std::int64_t min_freeze_step,
                     std::optional<std::int64_t> max_freeze_step,
                     double freeze_ratio);

template <class Options>
void validate_freeze(const Options& o) {
  validate_freeze(o.freeze_step, o.lr_warmup_steps, o.total_steps,
                  o.min_freeze_step, o.max_freeze_step, o.freeze_ratio);
}

/// The fields in one line.
template <class Options>
[[nodiscard]] std::string describe_freeze(const Options& o) {
  const auto optional = [](const std::optional<std::int64_t>& value) {
    return value ? std::to_string(*value) : std::string("none");
  };
  return "freeze_step=" + std::to_string(o.freeze_step) +
         " lr_warmup_steps=" + optional(o.lr_warmup_steps) +
         " total_steps=" + optional(o.total_steps) +
         " min_freeze_step=" + std::to_string(o.min_freeze_step) +
         " max_freeze_step=" + optional(o.max_freeze_step) +
         " freeze_ratio=" + std::to_string(o.freeze_ratio);
}

/// The end of the warm-up stage, when the variance is frozen and becomes the
/// denominator of all compressed steps that follow.
class Freeze {
 public:
  Freeze(LowBitModel& model, const FreezeOptions& options)
      : model_(model),
        freeze_step_(options.freeze_step),
        automatic_(options.automatic) {}

  [[nodiscard]] bool is_frozen() const { return frozen_at_ > 0; }
  /// The last step of the warm-up stage, 0 before it ended.
  [[nodiscard]] std::int64_t at() const { return frozen_at_; }
  [[nodiscard]] Phase phase() const {
    return is_frozen() ? Phase::kCompressed : Phase::kExact;
  }

  /// After every exact step: whether it was the last one. Collective where the
  /// gate is asked.
  [[nodiscard]] bool ends_at(std::int64_t step,
                             const CompressedMomentum& momentum);
  /// See Optimizer::set_freeze_gate().
  void set_gate(FreezeGate gate) { hold_.set_gate(std::move(gate)); }
  /// d = max(sqrt(v / (1 - beta2^step)) + eps, floor). The variance goes, or
  /// stays beside it where somebody still needs it.
  void freeze(std::int64_t step, bool keeps_variance, Denominator& denominator);

  [[nodiscard]] std::string describe() const;
  void add_to(State& state, const Denominator& denominator) const;
  /// Adds to the state of an exact rule what it lacks: the history of the
  /// variance, which begins now.
  static void begin_in(StateDict& state);
  /// What it was in a saved state; throws Error(kCorruptCheckpoint).
  struct Saved {
    std::int64_t frozen_at = 0;
    std::int64_t held_until = 0;
    AutoFreeze automatic;
    Buffer denominator;
  };
  [[nodiscard]] Saved read(StateDict& state) const;
  void restore(Saved&& saved, Denominator& denominator);

 private:
  [[nodiscard]] bool is_due(std::int64_t step);

  LowBitModel& model_;
  std::int64_t freeze_step_;
  AutoFreeze automatic_;
  std::int64_t frozen_at_ = 0;
  FreezeHold hold_;
};

}  // namespace thinwire::optim

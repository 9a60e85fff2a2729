// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include "optim/auto_freeze.h"
#include "optim/low_bit.h"

namespace thinwire::optim {

/// When the exact stage ends.
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
                     double freeze_ratio, Semantics semantics);

template <class Options>
void validate_freeze(const Options& o) {
  validate_freeze(o.freeze_step, o.lr_warmup_steps, o.total_steps,
                  o.min_freeze_step, o.max_freeze_step, o.freeze_ratio,
                  o.semantics);
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

/// What 1-bit Adam and 1-bit LAMB share: exact steps, until the variance is
/// frozen and becomes the denominator of all compressed steps that follow.
struct TwoStage : LowBitOptimizer::Impl {
  TwoStage(comm::Communicator& c, const ParameterLayout& layout,
           LowBitSettings settings, const FreezeOptions& freeze_options);

  std::int64_t freeze_step;
  AutoFreeze freeze;
  bool initialized;
  std::int64_t frozen_at = 0;  // the last exact step; 0: not frozen

  // ---- what each optimizer adds
  /// The reference's first step(), which moves nothing but counts.
  virtual void initialization_step(const StepInput& /*in*/,
                                   StepMeter& /*meter*/) {}
  /// The gradients are sums over the ranks.
  virtual void exact_update(const UpdateArrays& arrays) = 0;
  /// The gradients are this rank's.
  virtual void compressed_update(const StepInput& in, double grad_scale,
                                 StepMeter& meter) = 0;
  virtual void enter_compressed_stage();
  /// exp_avg_sq stays beside the denominator.
  [[nodiscard]] virtual bool keeps_variance() const {
    return !policy.floors_denominator || !parts.exact.empty();
  }
  virtual void save_stage(StateDict& /*state*/) const {}
  [[nodiscard]] virtual Commit read_stage(const StateDict& /*state*/) {
    return [] {};
  }

  /// The denominator of the variance as it is now, in place of the variance
  /// unless that is kept.
  void make_denominator();
  /// The reference tries its buffers out on a momentum of zero.
  void exchange_zeros();

  void take_step(const StepInput& in, StepMeter& meter,
                 StepReport& report) final;
  [[nodiscard]] Phase phase() const final;
  [[nodiscard]] std::string describe_schedule() const final;
  void save_own(StateDict& state) const final;
  [[nodiscard]] Commit read_own(const StateDict& state) final;

 private:
  [[nodiscard]] bool is_last_exact_step();
};

}  // namespace thinwire::optim

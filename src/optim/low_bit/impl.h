// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "optim/low_bit/denominator/denominator.h"
#include "optim/low_bit/gradients/local_gradients.h"
#include "optim/low_bit/model.h"
#include "optim/low_bit/momentum/local_updates.h"
#include "optim/low_bit/momentum/momentum.h"
#include "optim/low_bit/momentum/under_next_step.h"
#include "optim/state_parts.h"
#include "thinwire/optim/low_bit_optimizer.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// The parts that the three optimizers share. Each adds its own, and calls all
/// of them in its paper's order. Parts do not call back.
struct LowBitOptimizer::Impl {
  Impl(comm::Communicator& comm, const ParameterLayout& layout,
       LowBitSettings settings, bool keeps_previous = false)
      : model(comm, layout, std::move(settings)),
        groups(model.adam.layout(), model.masks, model.parts()),
        gradients(model),
        momentum(model, keeps_previous),
        denominator(model, momentum) {}
  virtual ~Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  LowBitModel model;
  MaskedGroups groups;
  LocalGradients gradients;
  CompressedMomentum momentum;
  Denominator denominator;
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  bool verification_is_due = false;
  // Parts of the optimizer that adds them.
  EarlyGradients* early_gradients = nullptr;
  LocalUpdates* local_updates = nullptr;
  UnderNextStep* under_next_step = nullptr;
  FreezeStage* freeze_stage = nullptr;
  const std::vector<double>* lamb_coeffs = nullptr;

  // ---- what each optimizer adds
  /// Takes one step of its paper. A step that is skipped returns early and sets
  /// the report.
  virtual void take_step(const StepInput& in, StepMeter& step) = 0;
  /// Returns phase and freeze_step; the base knows the rest. Called for every
  /// bucket of gradients.
  [[nodiscard]] virtual Progress progress() const = 0;
  /// Lists its own parts of the state.
  virtual void list_own(StateParts& parts) = 0;
  /// Changes to the stage that the options name, after a load, and returns what
  /// it says about that.
  [[nodiscard]] virtual Notes follow_options() = 0;
  /// Returns whether exact steps of this rule are the warm-up. Adds to its
  /// state what a warm-up keeps besides.
  [[nodiscard]] virtual bool begins_in(StateDict& /*state*/,
                                       std::string_view /*rule*/) const {
    return false;
  }

  // ---- pieces of a step
  [[nodiscard]] Phase phase() const { return progress().phase; }
  [[nodiscard]] Adam& adam() { return model.adam; }
  /// Begins a compressed exchange. In a hierarchical one, gradients become the
  /// mean of this host's, where this rank encodes them. Returns
  /// LocalGradients::clip_by_estimate(). Collective.
  [[nodiscard]] std::optional<double> begin_compressed(
      const StepInput& in, StepMeter& step, bool is_unlike_early = false);
  /// Prepares gradients that will be multiplied by `grad_scale` and encoded.
  /// Activates inactive elements that have a gradient and returns them; scales
  /// outlier elements and bounds outliers.
  [[nodiscard]] std::vector<std::size_t> prepare_gradients(const StepInput& in,
                                                           double grad_scale,
                                                           StepMeter& step);
  /// Passes the residuals of gradients to the momentum at the freeze, once
  /// there are denominators and units.
  void hand_over_residuals();
  /// Applies new masks, once ranks have agreed on them and before the step
  /// depends on them.
  MaskChange follow_masks();
  /// Compares parameters over the ranks if the options say that it is time,
  /// after a step that has left them equal. `schedule` are counters that must
  /// be equal, too. Collective.
  void verify(View params, const std::string& schedule);
  /// Postpones verify() after a step that leaves parameters different.
  void put_off_verification();

  [[nodiscard]] StepReport step(const StepInput& in);
  [[nodiscard]] State state();
  [[nodiscard]] Optimizer::Adoption adopt(StateDict state);
  void require_owner(const StateDict& state);

  /// Completes what travels under the next step. Throws
  /// Error(kFailedPrecondition) if a step has begun early.
  void require_between_steps(const char* call) const;
  /// Returns the steps after which parameters differ from rank to rank, or
  /// null.
  [[nodiscard]] LocalSteps* local_steps() const {
    if (under_next_step != nullptr) return under_next_step;
    return local_updates;
  }

 private:
  void require_optimizer(StateDict& state) const;
  void list(StateParts& parts);
};

/// Gradients of the next step. They are averaged before an exact one, and
/// inside hosts before a hierarchical compressed one. Otherwise they are
/// measured.
class EarlyLowBit : public EarlyGradients {
 public:
  explicit EarlyLowBit(LowBitOptimizer::Impl& impl) : impl_(impl) {}

  [[nodiscard]] bool reduces() const noexcept override {
    return impl_.phase() == Phase::kExact || impl_.model.host;
  }
  void reduce(View grads, Range range) override;
  /// A hierarchical exchange measures means, not these.
  [[nodiscard]] bool measures() const noexcept override {
    return !impl_.model.host && !reduces();
  }
  void measure(ConstView grads, Range range) override;
  void finish() override {
    if (impl_.model.host) impl_.model.host->finish_early();
  }
  void forget() noexcept override { impl_.gradients.forget_early(); }

 protected:
  LowBitOptimizer::Impl& impl_;
};

}  // namespace thinwire::optim

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

/// Parts that the three low-bit optimizers share. Each optimizer adds its own
/// parts and calls all of them in the order of its paper. Parts do not call
/// back.
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
  // Objects of the optimizer that derives from this class.
  EarlyGradients* early_gradients = nullptr;
  LocalUpdates* local_updates = nullptr;
  UnderNextStep* under_next_step = nullptr;
  FreezeStage* freeze_stage = nullptr;
  const std::vector<double>* lamb_coeffs = nullptr;

  // ---- parts of each optimizer
  /// Takes one step of the optimizer's paper. A skipped step returns early and
  /// sets the report.
  virtual void take_step(const StepInput& in, StepMeter& step) = 0;
  /// Returns phase and freeze_step; the base class adds the rest. Called for
  /// every bucket of gradients.
  [[nodiscard]] virtual Progress progress() const = 0;
  /// Lists the optimizer's own parts of the state.
  virtual void list_own(StateParts& parts) = 0;
  /// After a load, changes to the stage that the options name and returns notes
  /// on it.
  [[nodiscard]] virtual Notes follow_options() = 0;
  /// Returns whether exact steps of `rule` are this optimizer's warm-up. Adds
  /// to the rule's state the data that a warm-up also keeps.
  [[nodiscard]] virtual bool begins_in(StateDict& /*state*/,
                                       std::string_view /*rule*/) const {
    return false;
  }

  // ---- pieces of a step
  [[nodiscard]] Phase phase() const { return progress().phase; }
  [[nodiscard]] Adam& adam() { return model.adam; }
  /// Begins a compressed exchange. In a hierarchical exchange, gradients are
  /// replaced by the host's mean in the blocks that this rank encodes. Returns
  /// LocalGradients::clip_by_estimate(). Collective.
  [[nodiscard]] std::optional<double> begin_compressed(const StepInput& in,
                                                       StepMeter& step);
  /// Prepares gradients that will be multiplied by `grad_scale` and encoded.
  /// Activates inactive elements that have a gradient and returns them. Scales
  /// and limits outliers.
  [[nodiscard]] std::vector<std::size_t> prepare_gradients(const StepInput& in,
                                                           double grad_scale,
                                                           StepMeter& step);
  /// Passes the gradients' residuals to the momentum at the freeze, after
  /// denominators and units are known.
  void hand_over_residuals();
  /// Applies new masks after the ranks have agreed on them and before the step
  /// uses them.
  MaskChange follow_masks();
  /// After a step that leaves parameters equal, compares them over the ranks if
  /// the options demand it now. `schedule` lists counters that must also be
  /// equal. Collective.
  void verify(View params, const std::string& schedule);
  /// Postpones verify() after a step that leaves parameters different on the
  /// ranks.
  void put_off_verification();

  [[nodiscard]] StepReport step(const StepInput& in);
  [[nodiscard]] State state();
  [[nodiscard]] Optimizer::Adoption adopt(StateDict state);
  void require_owner(const StateDict& state);

  /// Completes an exchange under the next step. Throws
  /// Error(kFailedPrecondition) if a step has begun early.
  void require_between_steps(const char* call) const;
  /// Returns the steps after which parameters differ between ranks, or null.
  [[nodiscard]] LocalSteps* local_steps() const {
    if (under_next_step != nullptr) return under_next_step;
    return local_updates;
  }

 private:
  void require_optimizer(StateDict& state) const;
  void list(StateParts& parts);
};

/// Early work on the next step's gradients. Before an exact step they are
/// averaged; before a hierarchical compressed step they are averaged inside
/// hosts. Otherwise they are only measured.
class EarlyLowBit : public EarlyGradients {
 public:
  explicit EarlyLowBit(LowBitOptimizer::Impl& impl) : impl_(impl) {}

  [[nodiscard]] bool reduces() const noexcept override {
    return impl_.phase() == Phase::kExact || impl_.model.host;
  }
  void reduce(View grads, Range range) override;
  /// False in a hierarchical exchange, which measures means instead.
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

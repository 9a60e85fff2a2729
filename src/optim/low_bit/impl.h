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
#include "thinwire/optim/low_bit_optimizer.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// The parts that the three optimizers share. Each adds its own, and calls them
/// in its paper's order; parts do not call back.
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
  FreezeStage* freeze_stage = nullptr;
  const std::vector<double>* lamb_coeffs = nullptr;

  // ---- what each optimizer adds
  /// One step of its paper. A step that is skipped returns early, with the
  /// report saying so.
  virtual void take_step(const StepInput& in, StepMeter& step) = 0;
  /// Returns phase and freeze_step; the base knows the rest. Called for every
  /// bucket of gradients.
  [[nodiscard]] virtual Progress progress() const = 0;
  virtual void add_own(State& state) const = 0;
  /// Takes it out of the state; exp_avg and exp_avg_sq are still there.
  [[nodiscard]] virtual Optimizer::Adoption adopt_own(StateDict& state) = 0;
  /// Returns whether exact steps of this rule are the warm-up. Adds to its
  /// state what else a warm-up keeps, which begins now.
  [[nodiscard]] virtual bool begins_in(StateDict& /*state*/,
                                       std::string_view /*rule*/) const {
    return false;
  }

  // ---- pieces of a step
  [[nodiscard]] Phase phase() const { return progress().phase; }
  [[nodiscard]] Adam& adam() { return model.adam; }
  /// Collective, before a compressed exchange: by host, gradients become the
  /// mean of this host's, where this rank encodes them. Returns what
  /// LocalGradients::clip_by_estimate() does.
  [[nodiscard]] std::optional<double> begin_compressed(
      const StepInput& in, StepMeter& step, bool is_unlike_early = false);
  /// Before gradients are encoded, `grad_scale` being what they will be
  /// multiplied by: late elements that have one take part from now on and are
  /// returned; heavy elements and outliers are kept from spoiling their block.
  [[nodiscard]] std::vector<std::size_t> prepare_gradients(const StepInput& in,
                                                           double grad_scale,
                                                           StepMeter& step);
  /// At the freeze, with denominators and units: what gradients owe goes to the
  /// momentum.
  void hand_over_residuals();
  /// After ranks have agreed on the masks, and before anything of this step
  /// depends on them.
  MaskChange follow_masks();
  /// Collective, after a step that was applied and has left parameters equal on
  /// all ranks: compares them where options say that it is time.
  /// `schedule`: counters that must be equal, too.
  void verify(View params, const std::string& schedule);
  /// The same after one that leaves them different: it is made up for later.
  void put_off_verification();

  [[nodiscard]] StepReport step(const StepInput& in);
  [[nodiscard]] State state() const;
  [[nodiscard]] Optimizer::Adoption adopt(StateDict state);
  void require_owner(const StateDict& state) const;

  /// Throws Error(kFailedPrecondition) while a step is under way.
  void require_between_steps(const char* call) const;

 private:
  void require_optimizer(StateDict& state) const;
};

/// Gradients of the next step: averaged in an exact one, and by host inside
/// hosts in a compressed one; otherwise measured.
class EarlyLowBit : public EarlyGradients {
 public:
  explicit EarlyLowBit(LowBitOptimizer::Impl& impl) : impl_(impl) {}

  [[nodiscard]] bool reduces() const noexcept override {
    return impl_.phase() == Phase::kExact || impl_.model.host;
  }
  void reduce(View grads, Range range) override;
  /// By host, what is measured is a mean.
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

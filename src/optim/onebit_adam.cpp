// SPDX-License-Identifier: Apache-2.0
// arXiv:2102.02888, Algorithm 1. docs/algorithms/onebit-adam.md shows the same
// steps. The compressed momentum is in low_bit/momentum.
#include "thinwire/optim/onebit_adam.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/require.h"
#include "optim/low_bit/freeze/freeze.h"
#include "optim/low_bit/gradients/local_gradients.h"
#include "optim/low_bit/impl.h"

namespace thinwire::optim {

namespace {

LowBitSettings settings_of(const OnebitAdamOptions& options) {
  return low_bit_settings("onebit_adam", describe(options.freeze), options);
}

// Refuses a state of an earlier version that changed the variance after the
// freeze.
void require_no_refresh(const StateDict& state) {
  constexpr const char* kIsUnbiased = "variance_is_unbiased";
  if (state.has_scalar(kIsUnbiased) && state.integer(kIsUnbiased) != 0)
    throw Error(ErrorCode::kCorruptCheckpoint,
                "the state was saved with variance_refresh, which is no option "
                "any more; load its weights alone (what = kWeights; Python: "
                "weights_only=True)");
}

// Under the next step, the ranks of a host average all gradients instead of
// pieces.
class EarlyOnebitAdam final : public EarlyLowBit {
 public:
  using EarlyLowBit::EarlyLowBit;
  [[nodiscard]] bool reduces() const noexcept override;
};

struct OnebitAdamImpl final : LowBitOptimizer::Impl {
  OnebitAdamImpl(comm::Communicator& comm, const ParameterLayout& layout,
                 const OnebitAdamOptions& options)
      : Impl(comm, layout, settings_of(options)),
        freeze(model, options.freeze),
        exact_groups(model),
        early(*this),
        under(model, momentum, denominator) {
    early_gradients = &early;
    if (model.settings.exchange.under_next_step) under_next_step = &under;
    freeze_stage = &freeze;
  }

  Freeze freeze;
  ExactGroups exact_groups;
  EarlyOnebitAdam early;
  UnderNextStep under;

  void take_step(const StepInput& in, StepMeter& step) override;
  [[nodiscard]] Progress progress() const override {
    return {.phase = freeze.phase(), .freeze_step = freeze.planned()};
  }
  void list_own(StateParts& parts) override;
  [[nodiscard]] Notes follow_options() override;
  [[nodiscard]] bool begins_in(StateDict& state,
                               std::string_view rule) const override {
    if (rule != "adam") return false;
    Freeze::begin_in(state);
    return true;
  }

  void warm_up(const StepInput& in, StepMeter& step);
  void begin_compression();
  void compressed_step(const StepInput& in, StepMeter& step);
  void step_under_next(const StepInput& in, StepMeter& step);
  [[nodiscard]] bool keeps_variance() const {
    return !model.layout.exact.empty();
  }
};

void OnebitAdamImpl::take_step(const StepInput& in, StepMeter& step) {
  const bool goes_under = freeze.is_frozen() && under.is_on();
  if (!goes_under) under.rejoin(in);  // after a load
  if (goes_under)
    step_under_next(in, step);
  else if (freeze.is_frozen())
    compressed_step(in, step);
  else
    warm_up(in, step);
  if (step.report().applied && !under.differs())
    verify(in.params, freeze.describe());
}

// Takes a step of the warm-up stage, which is Adam on the averaged gradient.
void OnebitAdamImpl::warm_up(const StepInput& in, StepMeter& step) {
  // g = clip * mean_i g_i, or nothing if not finite and skipped on all ranks.
  const auto average = gradients.average(in, step);
  if (!average) return;
  follow_masks();
  // m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
  // p = p - lr (m^ / (sqrt(v^) + eps) + wd p)
  apply_by_bucket(adam(), ++steps, *average, model.pool,
                  {model.bucket(), in.final_range});
  // d = max(sqrt(v / (1 - beta2^T)) + eps, floor) after the last step T
  if (freeze.ends_at(steps, momentum)) begin_compression();
}

void OnebitAdamImpl::begin_compression() {
  freeze.freeze(steps, keeps_variance(), denominator);
  hand_over_residuals();
}

// Takes a step of the compression stage: v does not change, and m_i is sent as
// signs.
void OnebitAdamImpl::compressed_step(const StepInput& in, StepMeter& step) {
  // g_i = clip * g_i, with an estimate of the norm of the mean
  const auto scale = begin_compressed(in, step);
  if (!scale) return;
  const Coefficients c = model.coefficients(++steps, *scale);
  (void)prepare_gradients(in, *scale, step);
  exact_groups.begin(in.grads);
  // m_i = beta1 m + (1 - beta1) g_i
  // m = server(mean_i worker(m_i)), each with error feedback, in 1 bit
  // p = p - lr (m / (1 - beta1^t) / d + wd p)
  momentum.exchange.average(in, c, denominator.updates(in, c), step);
  exact_groups.finish(steps, in, *scale, step);
}

// Takes a compressed step whose m_i is sent while the caller computes the next
// gradients. The ranks of a host take the same local steps, so each rank needs
// all gradients.
void OnebitAdamImpl::step_under_next(const StepInput& in, StepMeter& step) {
  // m = server(mean_i worker(m_i)) of the step before,
  // theta = theta - lr (m / (1 - beta1^t) / d + wd theta)
  step.add(under.arrive());
  if (under.differs()) verify(under.theta(), freeze.describe());
  if (model.host) model.host->average_all(in.grads, step);
  const auto scale = gradients.clip_by_estimate(
      in, momentum.participation.has_late(in.grads), step);
  if (!scale) return under.rejoin(in);
  const Coefficients c = model.coefficients(++steps, *scale);
  (void)prepare_gradients(in, *scale, step);
  exact_groups.begin(in.grads);
  exact_groups.finish(steps, in, *scale, step);
  // m_i = beta1 m + (1 - beta1) g_i is sent,
  // p = theta - lr (m_i / (1 - beta1^t) / d + wd theta)
  under.begin(in, c);
}

bool EarlyOnebitAdam::reduces() const noexcept {
  const auto& own = static_cast<const OnebitAdamImpl&>(impl_);
  return !(own.freeze.is_frozen() && own.under.is_on()) &&
         EarlyLowBit::reduces();
}

void OnebitAdamImpl::list_own(StateParts& parts) {
  if (parts.saved() != nullptr) require_no_refresh(*parts.saved());
  if (freeze.list(parts, denominator) && keeps_variance() && model.size() > 0)
    parts.require("exp_avg_sq");
}

Notes OnebitAdamImpl::follow_options() {
  if (freeze.must_return(steps)) {
    const std::int64_t frozen_at = freeze.frozen_at();
    return {freeze.return_to_exact(steps, denominator, [&](std::size_t group) {
      return adam().coefficients(group, frozen_at, 1).exp_avg_sq_scale;
    })};
  }
  if (!freeze.must_end(steps)) return {};
  begin_compression();
  return {freeze.note_of_end(steps)};
}

}  // namespace

void OnebitAdamOptions::validate(const ParameterLayout& layout) const {
  settings_of(*this).validate(layout);
  compression.validate();
  freeze.validate();
}

OnebitAdam::OnebitAdam(comm::Communicator& comm, const ParameterLayout& layout,
                       const OnebitAdamOptions& options)
    : LowBitOptimizer([&] {
        options.validate(layout);
        return std::make_unique<OnebitAdamImpl>(comm, layout, options);
      }()) {}

OnebitAdam::~OnebitAdam() = default;

}  // namespace thinwire::optim

// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/low_bit_optimizer.h"

#include <cmath>
#include <utility>

#include "core/require.h"
#include "optim/checks.h"
#include "optim/low_bit/impl.h"
#include "optim/verification.h"
#include "thinwire/comm/agreement.h"

namespace thinwire::optim {

StepReport LowBitOptimizer::Impl::step(const StepInput& in) {
  StepReport report{.phase = phase(), .loss_scale = in.loss_scale};
  if (model.host) model.host->begin_step();
  {
    StepMeter meter(model.comm, report);
    take_step(in, meter);
  }
  if (!report.applied) ++skipped;
  report.masked = momentum.participation.num_left_out();
  report.heavy = denominator.heavy().size();
  return report;
}

void EarlyLowBit::reduce(View grads, Range range) {
  require_reduces();
  if (impl_.phase() == Phase::kExact &&
      !(impl_.model.host && impl_.gradients.few_bits().is_on())) {
    impl_.gradients.begin_early(grads, range);
    return;
  }
  require_view("grads", grads, impl_.model.size(), true, true);
  impl_.model.host->begin_early(grads, range);
}

void EarlyLowBit::measure(ConstView grads, Range range) {
  require_measures();
  impl_.gradients.measure_early(grads, range);
}

std::optional<double> LowBitOptimizer::Impl::begin_compressed(
    const StepInput& in, StepMeter& step) {
  if (model.host) model.host->average(in.grads, step);
  return gradients.clip_by_estimate(
      in, momentum.participation.has_late(in.grads), step);
}

std::vector<std::size_t> LowBitOptimizer::Impl::prepare_gradients(
    const StepInput& in, double grad_scale, StepMeter& step) {
  std::vector<std::size_t> admitted;
  if (gradients.any_late()) admitted = momentum.participation.admit_late(step);
  step.report().revived += admitted.size();
  denominator.guard(in.grads, grad_scale, gradients.chunk_squares());
  if (model.masks.are_waiting()) follow_masks();
  return admitted;
}

void LowBitOptimizer::Impl::hand_over_residuals() {
  if (auto residuals = gradients.few_bits().release())
    momentum.exchange.inherit(std::move(*residuals), denominator.heavy());
}

MaskChange LowBitOptimizer::Impl::follow_masks() {
  model.masks.follow();
  if (denominator.blocks.empty()) return {};  // masks take effect at the freeze
  MaskChange change = denominator.follow_masks();
  if (local_updates != nullptr) local_updates->leave_out(change.excluded);
  return change;
}

void LowBitOptimizer::Impl::put_off_verification() {
  const std::int64_t every = model.settings.exchange.verify_every;
  if (every > 0 && steps % every == 0) verification_is_due = true;
}

void LowBitOptimizer::Impl::verify(View params, const std::string& schedule) {
  put_off_verification();
  if (!verification_is_due) return;
  verification_is_due = false;
  verify_same(model.comm, model.pool, adam().layout(), params,
              fmt::format("step {} {}\nmasks {:08x} {}{}", steps, schedule,
                          model.masks.fingerprint(), model.settings.describe(),
                          adam().describe()));
}

LowBitOptimizer::LowBitOptimizer(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {
  const LowBitModel& model = impl_->model;
  comm::require_same(model.comm, "parameter layout and options",
                     model.adam.layout().describe() + model.adam.describe() +
                         model.settings.describe());
}

LowBitOptimizer::~LowBitOptimizer() = default;

StepReport LowBitOptimizer::step(const StepInput& input) {
  require_float32_step_input(input, impl_->model.size());
  return impl_->step(input);
}

ParameterGroups& LowBitOptimizer::groups() { return impl_->groups; }

Progress LowBitOptimizer::progress() const {
  Progress progress = impl_->progress();
  progress.steps = impl_->steps;
  progress.skipped = impl_->skipped;
  if (impl_->lamb_coeffs != nullptr) progress.lamb_coeffs = *impl_->lamb_coeffs;
  return progress;
}

double LowBitOptimizer::residual_ratio() const {
  impl_->require_between_steps("residual_ratio");
  return impl_->momentum.exchange.residual_ratio();
}

EarlyGradients* LowBitOptimizer::early() { return impl_->early_gradients; }

LocalSteps* LowBitOptimizer::local_steps() { return impl_->local_steps(); }

FreezeStage* LowBitOptimizer::freeze() { return impl_->freeze_stage; }

void LowBitOptimizer::set_masters(ConstView params) {
  require(params.size() == impl_->model.size(), "params",
          fmt::format("{} elements", impl_->model.size()), params.size());
  if (impl_->local_updates != nullptr) impl_->local_updates->begin_anew(params);
  if (impl_->under_next_step != nullptr) impl_->under_next_step->begin_anew();
}

State LowBitOptimizer::state() const { return impl_->state(); }

Optimizer::Adoption LowBitOptimizer::adopt(StateDict state) {
  return impl_->adopt(std::move(state));
}

void LowBitOptimizer::require_owner(const StateDict& state) const {
  impl_->require_owner(state);
}

void LowBitOptimizer::set_observer(exchange::WireObserver* observer) noexcept {
  impl_->model.observer = observer;
  impl_->momentum.exchange.follow_observer();
}

}  // namespace thinwire::optim

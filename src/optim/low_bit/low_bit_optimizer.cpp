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
  report.masked = momentum.num_left_out();
  report.heavy = denominator.heavy().size();
  return report;
}

void LowBitOptimizer::Impl::reduce_early(View grads, Range range) {
  if (phase() == Phase::kExact) {
    gradients.begin_early(grads, range);
    return;
  }
  require_view("grads", grads, model.size(), true, true);
  model.host->begin_early(grads, range);
}

std::optional<double> LowBitOptimizer::Impl::begin_compressed(
    const StepInput& in, StepMeter& step, bool is_unlike_early) {
  if (model.host) model.host->average(in.grads, step);
  return gradients.clip_by_estimate(in, momentum.has_late(in.grads), step,
                                    is_unlike_early);
}

std::vector<std::size_t> LowBitOptimizer::Impl::prepare_gradients(
    const StepInput& in, double grad_scale, StepMeter& step) {
  std::vector<std::size_t> admitted;
  if (gradients.any_late()) admitted = momentum.admit_late(step);
  step.report().revived += admitted.size();
  denominator.guard(in.grads, grad_scale, gradients.chunk_squares());
  if (model.masks.are_waiting()) follow_masks();
  return admitted;
}

MaskChange LowBitOptimizer::Impl::follow_masks() {
  model.masks.follow();
  if (denominator.blocks.empty()) return {};  // they act at the freeze
  MaskChange change = denominator.follow_masks();
  leave_out(change.excluded);
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

void LowBitOptimizer::set_freeze_gate(FreezeGate gate) {
  impl_->set_freeze_gate(std::move(gate));
}

StepReport LowBitOptimizer::step(const StepInput& input) {
  require_float32_step_input(input, impl_->model.size());
  return impl_->step(input);
}

bool LowBitOptimizer::reduces_early() const noexcept {
  return impl_->reduces_early();
}

void LowBitOptimizer::reduce_early(View grads, Range range) {
  if (!reduces_early()) Optimizer::reduce_early(grads, range);
  impl_->reduce_early(grads, range);
}

std::vector<Range> LowBitOptimizer::buckets() const { return impl_->buckets(); }

// By host, what is measured is a mean.
bool LowBitOptimizer::measures_early() const noexcept {
  return !impl_->model.host && !reduces_early();
}

void LowBitOptimizer::finish_early() {
  if (impl_->model.host) impl_->model.host->finish_early();
}

void LowBitOptimizer::measure_early(ConstView grads, Range range) {
  if (!measures_early()) Optimizer::measure_early(grads, range);
  impl_->gradients.measure_early(grads, range);
}

void LowBitOptimizer::forget_early() noexcept {
  impl_->gradients.forget_early();
}

void LowBitOptimizer::synchronize(View params) {
  require_view("params", params, impl_->model.size(), true, false);
  impl_->synchronize(params);
}

std::int64_t LowBitOptimizer::steps() const noexcept { return impl_->steps; }

std::int64_t LowBitOptimizer::skipped_steps() const noexcept {
  return impl_->skipped;
}

Phase LowBitOptimizer::phase() const noexcept { return impl_->phase(); }

std::optional<std::int64_t> LowBitOptimizer::freeze_step() const {
  return impl_->freeze_step();
}

void LowBitOptimizer::set_learning_rate(std::size_t group,
                                        double learning_rate) {
  impl_->adam().set_learning_rate(group, learning_rate);
}

double LowBitOptimizer::learning_rate(std::size_t group) const {
  return impl_->adam().learning_rate(group);
}

void LowBitOptimizer::set_weight_decay(std::size_t group, double weight_decay) {
  impl_->adam().set_weight_decay(group, weight_decay);
}

double LowBitOptimizer::weight_decay(std::size_t group) const {
  return impl_->adam().weight_decay(group);
}

void LowBitOptimizer::set_exp_avg_mask(std::size_t group,
                                       std::span<const float> mask) {
  impl_->model.masks.set(impl_->model.adam.layout(), group, mask);
}

std::vector<std::string> LowBitOptimizer::take_notes() {
  return std::exchange(impl_->notes, {});
}

std::size_t LowBitOptimizer::num_groups() const noexcept {
  return impl_->adam().num_groups();
}

State LowBitOptimizer::state() const { return impl_->state(); }

Optimizer::Adoption LowBitOptimizer::adopt(StateDict state) {
  return impl_->adopt(std::move(state));
}

StateDict LowBitOptimizer::owner() const { return impl_->owner(); }

void LowBitOptimizer::require_owner(const StateDict& state) const {
  impl_->require_owner(state);
}

void LowBitOptimizer::repeat_local_steps(View params) {
  require_view("params", params, impl_->model.size(), true, false);
  impl_->repeat_local_steps(params);
}

ConstView LowBitOptimizer::exchanged_params(ConstView params) const {
  return steps_behind() == 0 ? params : impl_->exchanged_params(params);
}

std::int64_t LowBitOptimizer::steps_behind() const noexcept {
  return impl_->steps_behind();
}

double LowBitOptimizer::residual_ratio() const {
  impl_->require_between_steps("residual_ratio");
  return impl_->momentum.residual_ratio();
}

void LowBitOptimizer::read_masters(ConstView params) {
  require(params.size() == impl_->model.size(), "params",
          fmt::format("{} elements", impl_->model.size()), params.size());
  impl_->read_masters(params);
}

void LowBitOptimizer::set_observer(exchange::WireObserver* observer) noexcept {
  impl_->model.observer = observer;
  impl_->momentum.follow_observer();
}

}  // namespace thinwire::optim

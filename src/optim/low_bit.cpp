// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit.h"

#include <cmath>
#include <utility>

#include "optim/checks.h"
#include "optim/verification.h"
#include "thinwire/comm/agreement.h"

namespace thinwire::optim {

using compress::CompressedAllReduce;
using kernels::AdamCoefficients;

namespace {

compress::BlockOptions block_options(const comm::Communicator& comm,
                                     const LowBitSettings& settings) {
  return {.world_size = comm.size(),
          .bucket_elements = settings.exchange.bucket_elements,
          .scale_per_unit = policy_of(settings.semantics).scale_per_parameter};
}

}  // namespace

LowBitOptimizer::Impl::Impl(comm::Communicator& c,
                            const ParameterLayout& layout, LowBitSettings s)
    : comm(c),
      settings(std::move(s)),
      policy(policy_of(settings.semantics)),
      adam(layout, settings.adam),
      pool(settings.exchange.num_threads),
      parts(layout, settings.groups, block_options(c, settings)),
      exact_average(c, pool, layout, settings.exchange.bucket_elements),
      number(optimizer_number(c)) {}

CompressedAllReduce& LowBitOptimizer::Impl::the_exchange() {
  if (!exchange) {
    compress::CompressedAllReduceOptions options{
        .blocks = block_options(comm, settings),
        .scale = settings.scale,
        .residual_dtype = settings.residual_dtype};
    adjust(options);
    exchange = std::make_unique<CompressedAllReduce>(comm, pool,
                                                     exchange_units(), options);
    exchange->set_active(active_mask);
    exchange->set_observer(observer);
  }
  return *exchange;
}

StepReport LowBitOptimizer::Impl::step(const StepInput& in) {
  StepReport report{.loss_scale = in.loss_scale};
  {
    StepMeter meter(comm, report);
    take_step(in, meter, report);
    if (report.applied) verify(in.params);
  }
  if (!report.applied) ++skipped;
  report.masked = num_masked;
  report.heavy = block_denominators.heavy().size();
  return report;
}

// Parameters may differ for some steps: then at the first chance after.
void LowBitOptimizer::Impl::verify(View params) {
  const std::int64_t every = settings.exchange.verify_every;
  if (every == 0) return;
  if (steps % every == 0) verification_is_due = true;
  if (!verification_is_due || !ranks_are_equal()) return;
  verification_is_due = false;
  verify_same(comm, pool, adam.layout(), params,
              "step " + std::to_string(steps) + ' ' + describe_schedule() +
                  '\n' + settings.describe() + adam.describe());
}

// The one scalar exchange of a step: are all gradients finite, how long?
std::optional<double> LowBitOptimizer::Impl::agree_on_norms(
    const StepInput& in, StepMeter& meter, StepReport& report) {
  if (!policy.skips_nonfinite) return 0;
  const bool has_late =
      phase() != Phase::kExact && late.look_at(in.grads, pool);
  const GradientSummary own{.squares = exact_average.local_squares(in.grads),
                            .optimizer = number,
                            .left_out = left_out_a_step,
                            .late = has_late};
  GradientAgreement agreement;
  try {
    agreement = agree(comm, own, meter);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kFailedPrecondition)
      exact_average.abandon(meter);  // another optimizer's: others may go on
    throw;
  }
  late_ones_arrived = agreement.any_late;
  if (agreement.nonfinite_rank >= 0 && skips(in)) {
    report.applied = false;
    report.nonfinite_rank = agreement.nonfinite_rank;
    exact_average.abandon(meter);
    return std::nullopt;
  }
  report.nonfinite_rank = agreement.left_out_rank;
  left_out_a_step = false;
  return agreement.rms_norm / in.loss_scale;
}

void LowBitOptimizer::Impl::sum(View values, std::span<const GroupRange> which,
                                StepMeter& meter) {
  const auto queued =
      queue_sums(comm, values, which, settings.exchange.bucket_elements);
  meter.waiting([&] {
    for (const comm::Work& work : queued) work.wait();
  });
}

std::optional<float> LowBitOptimizer::Impl::average_exactly(
    const StepInput& in, StepMeter& meter, StepReport& report) {
  const auto rms_norm = agree_on_norms(in, meter, report);
  if (!rms_norm) return std::nullopt;
  double divisor = in.loss_scale;
  if (!in.averaged) {
    exact_average.complete(in.grads, meter);
    divisor *= sum_divisor(comm, in.grads.dtype());
  }
  report.grad_norm = std::sqrt(sum_of_squares(pool, in.grads)) / divisor;
  if (skips(in) && !std::isfinite(report.grad_norm)) {
    report.applied = false;  // finite everywhere, but their sum overflows
    return std::nullopt;
  }
  norm.measure(report.grad_norm, *rms_norm);
  report.clip_factor = clip(report.grad_norm);
  return static_cast<float>(report.clip_factor / divisor);
}

std::optional<double> LowBitOptimizer::Impl::clip_by_estimate(
    const StepInput& in, StepMeter& meter, StepReport& report) {
  const auto rms_norm = agree_on_norms(in, meter, report);
  if (!rms_norm) return std::nullopt;
  report.grad_norm = estimated_norm(*rms_norm);
  report.grad_norm_is_estimate = true;
  report.clip_factor = clip(report.grad_norm);
  return report.clip_factor / in.loss_scale;
}

double LowBitOptimizer::Impl::estimated_norm(double rms_norm) const {
  return settings.exchange.calibrated_clipping ? norm.estimate(rms_norm)
                                               : rms_norm;
}

double LowBitOptimizer::Impl::clip(double grad_norm) const {
  return policy.honours_adam_options
             ? clip_factor(grad_norm, settings.exchange.max_grad_norm)
             : 1.0;
}

std::vector<AdamCoefficients> LowBitOptimizer::Impl::coefficients(
    double grad_scale) const {
  std::vector<AdamCoefficients> all;
  for (std::size_t g = 0; g < adam.num_groups(); ++g)
    all.push_back(adam.coefficients(g, steps, static_cast<float>(grad_scale)));
  return all;
}

LowBitOptimizer::LowBitOptimizer(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {
  comm::require_same(impl_->comm, "parameter layout and options",
                     impl_->adam.layout().describe() + impl_->adam.describe() +
                         impl_->settings.describe());
}

LowBitOptimizer::~LowBitOptimizer() = default;

StepReport LowBitOptimizer::step(const StepInput& input) {
  require_float32_step_input(input, impl_->adam.layout().size());
  return impl_->step(input);
}

bool LowBitOptimizer::reduces_early() const noexcept {
  return impl_->phase() == Phase::kExact;
}

void LowBitOptimizer::reduce_early(View grads, Range range) {
  if (!reduces_early()) Optimizer::reduce_early(grads, range);
  impl_->exact_average.begin_early(grads, range);
}

void LowBitOptimizer::synchronize(View params) {
  require_view("params", params, impl_->adam.layout().size(), true, false);
  impl_->synchronize(params);
}

std::int64_t LowBitOptimizer::steps() const noexcept { return impl_->steps; }

std::int64_t LowBitOptimizer::skipped_steps() const noexcept {
  return impl_->skipped;
}

Phase LowBitOptimizer::phase() const noexcept { return impl_->phase(); }

void LowBitOptimizer::set_learning_rate(std::size_t group,
                                        double learning_rate) {
  impl_->adam.set_learning_rate(group, learning_rate);
}

double LowBitOptimizer::learning_rate(std::size_t group) const {
  return impl_->adam.learning_rate(group);
}

std::size_t LowBitOptimizer::num_groups() const noexcept {
  return impl_->adam.num_groups();
}

StateDict LowBitOptimizer::state_dict() const { return impl_->save(); }

void LowBitOptimizer::load_state_dict(const StateDict& state) {
  impl_->load(state);
}

double LowBitOptimizer::residual_ratio() const {
  if (!impl_->exchange) return 0;
  const compress::CompressedAllReduce& all = *impl_->exchange;
  double mean = 0;
  for (std::size_t b = 0; b < all.layout().blocks().size(); ++b) {
    const double scale = all.mean(b).scale;
    mean += scale * scale *
            static_cast<double>(all.active().count(all.layout(), b));
  }
  const double residual = sum_of_squares(impl_->pool, all.worker_error());
  return mean == 0 ? 0 : std::sqrt(residual / mean);
}

void LowBitOptimizer::set_observer(compress::WireObserver* observer) noexcept {
  impl_->observer = observer;
  if (impl_->exchange) impl_->exchange->set_observer(observer);
}

}  // namespace thinwire::optim

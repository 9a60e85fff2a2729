// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/onebit_adam.h"

#include <cmath>
#include <utility>

#include "optim/frozen_variance.h"
#include "optim/onebit_adam_impl.h"
#include "optim/onebit_adam_options.h"
#include "optim/require.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/kernels/adam.h"

namespace thinwire::optim {

using compress::CompressedAllReduce;
using kernels::AdamCoefficients;
using kernels::Signs;

namespace {

compress::BlockOptions block_options(const comm::Communicator& comm,
                                     const OnebitAdamOptions& options) {
  return {.world_size = comm.size(),
          .bucket_elements = options.exchange.bucket_elements,
          .scale_per_unit = policy_of(options.semantics).scale_per_parameter};
}

}  // namespace

OnebitAdam::Impl::Impl(comm::Communicator& c, const ParameterLayout& layout,
                       const OnebitAdamOptions& o)
    : comm(c),
      options(o),
      policy(policy_of(o.semantics)),
      adam(layout, adam_options(o)),
      pool(o.exchange.num_threads),
      freeze(auto_freeze(o, adam)),
      parts(layout, o.groups, block_options(c, o)),
      initialized(!policy.initialization_step) {}

CompressedAllReduce& OnebitAdam::Impl::the_exchange() {
  if (!exchange) {
    exchange = std::make_unique<CompressedAllReduce>(
        comm, pool, parts.units,
        compress::CompressedAllReduceOptions{
            .blocks = block_options(comm, options),
            .scale = options.scale,
            .residual_dtype = options.residual_dtype});
    exchange->set_observer(observer);
  }
  return *exchange;
}

StepReport OnebitAdam::Impl::step(View params, View grads) {
  StepReport report;
  {
    StepMeter meter(comm, report);
    if (!initialized)
      initialization_step(params, grads, meter);
    else if (frozen_at == 0)
      exact_step(params, grads, meter, report);
    else
      compressed_step(params, grads, meter, report);
  }
  if (!report.applied) ++skipped;
  return report;
}

// The one scalar exchange of a step: are all gradients finite, how long?
GradientAgreement OnebitAdam::Impl::agree(ConstView grads, StepMeter& meter) {
  const double own = sum_of_squares(pool, grads);
  std::vector<double> sums(static_cast<std::size_t>(comm.size()));
  meter.waiting([&] { comm.all_gather(std::span(&own, 1), sums); });
  return agreement_on(sums);
}

void OnebitAdam::Impl::sum(View values, std::span<const GroupRange> which,
                           StepMeter& meter) {
  const auto queued =
      queue_sums(comm, values, which, options.exchange.bucket_elements);
  meter.waiting([&] {
    for (const comm::Work& work : queued) work.wait();
  });
}

void OnebitAdam::Impl::exact_step(View params, View grads, StepMeter& meter,
                                  StepReport& report) {
  report.phase = Phase::kExact;
  GradientAgreement agreement;
  if (policy.skips_nonfinite) {
    agreement = agree(grads, meter);
    if (agreement.nonfinite_rank >= 0) {
      report.applied = false;
      report.nonfinite_rank = agreement.nonfinite_rank;
      return;
    }
  }
  sum(grads, parts.all, meter);
  const double world = comm.size();
  report.grad_norm = std::sqrt(sum_of_squares(pool, grads)) / world;
  if (policy.skips_nonfinite && !std::isfinite(report.grad_norm)) {
    report.applied = false;  // finite everywhere, but their sum overflows
    return;
  }
  norm.measure(report.grad_norm, agreement.rms_norm);
  report.clip_factor = clip(report.grad_norm);
  const auto scale = static_cast<float>(report.clip_factor / world);
  ++steps;
  for_group_ranges(pool, parts.all, [&](Range range, std::size_t) {
    adam.apply(steps, range, params, grads, scale);
  });
  if (is_last_exact_step()) enter_compressed_stage();
}

double OnebitAdam::Impl::clip(double grad_norm) const {
  return policy.honours_adam_options
             ? clip_factor(grad_norm, options.exchange.max_grad_norm)
             : 1.0;
}

void OnebitAdam::Impl::compressed_step(View params, View grads,
                                       StepMeter& meter, StepReport& report) {
  report.phase = Phase::kCompressed;
  const GradientAgreement agreement =
      policy.skips_nonfinite ? agree(grads, meter) : GradientAgreement{};
  if (agreement.nonfinite_rank >= 0) {
    report.applied = false;
    report.nonfinite_rank = agreement.nonfinite_rank;
    return;
  }
  report.grad_norm = norm.estimate(agreement.rms_norm);
  report.grad_norm_is_estimate = true;
  report.clip_factor = clip(report.grad_norm);
  ++steps;

  observe_exact(grads);
  const auto queued =
      queue_sums(comm, grads, parts.exact, options.exchange.bucket_elements);
  if (compresses())
    compressed_update(params, grads, report.clip_factor, meter);
  else
    lone_update(params, grads, report.clip_factor);
  meter.waiting([&] {
    for (const comm::Work& work : queued) work.wait();
  });
  const auto scale =
      static_cast<float>(report.clip_factor / double(comm.size()));
  for_group_ranges(pool, parts.exact, [&](Range range, std::size_t) {
    adam.apply(steps, range, params, grads, scale);
  });
}

std::vector<AdamCoefficients> OnebitAdam::Impl::coefficients(
    double grad_scale) const {
  std::vector<AdamCoefficients> all;
  for (std::size_t g = 0; g < adam.num_groups(); ++g)
    all.push_back(adam.coefficients(g, steps, static_cast<float>(grad_scale)));
  return all;
}

// Momentum formed, encoded, averaged, decoded and applied, block by block.
void OnebitAdam::Impl::compressed_update(View params, ConstView grads,
                                         double grad_scale, StepMeter& meter) {
  const std::vector<AdamCoefficients> c = coefficients(grad_scale);
  CompressedAllReduce& all = the_exchange();
  const float* m = adam.exp_avg().as<float>().data();
  const double waited = all.wait_seconds();
  all.run(
      [&](std::size_t b) {
        const Range& values = parts.blocks.blocks()[b].values;
        kernels::SignInput input{
            .grads = grads.subview(values.offset, values.size),
            .coefficients = &c[parts.block_group[b]]};
        if (momentum_is_signs)
          input.mean = all.mean(b);
        else
          input.exp_avg = m + values.offset;
        return input;
      },
      [&](std::size_t b, Signs mean) {
        apply_mean(b, mean, params, c[parts.block_group[b]]);
      });
  meter.add_wait(all.wait_seconds() - waited);
  if (policy.masks_before_compression) {
    momentum_is_signs = true;
    if (parts.exact.empty()) adam.exp_avg() = Buffer();
  }
}

void OnebitAdam::Impl::apply_mean(std::size_t b, Signs mean, View params,
                                  const AdamCoefficients& c) {
  const Range& values = parts.blocks.blocks()[b].values;
  if (values.size == 0) return;
  kernels::FrozenUpdateArrays arrays = frozen_arrays(values, params);
  if (policy.masks_before_compression) {
    kernels::sign_update(mean, exchange->active().words(parts.blocks, b),
                         arrays, c);
    return;
  }
  float* m = adam.exp_avg().as<float>().data() + values.offset;
  kernels::sign_decode(mean, nullptr, m, values.size);
  parts.multiply_by_mask(adam.exp_avg().as<float>(), values);
  arrays.exp_avg = m;
  kernels::frozen_update(arrays, c);
}

kernels::FrozenUpdateArrays OnebitAdam::Impl::frozen_arrays(Range range,
                                                            View params) {
  return {.params = params.as<float>().data() + range.offset,
          .denominator = denominator.as<float>().data() + range.offset,
          .size = range.size};
}

// A group of one has nobody to compress for: momentum stays in full.
void OnebitAdam::Impl::lone_update(View params, ConstView grads,
                                   double grad_scale) {
  const std::vector<AdamCoefficients> c = coefficients(grad_scale);
  const auto m = adam.exp_avg().as<float>();
  for_group_ranges(pool, parts.compressed, [&](Range range, std::size_t group) {
    kernels::momentum(m.data() + range.offset,
                      grads.subview(range.offset, range.size), c[group]);
    if (!policy.masks_before_compression) parts.multiply_by_mask(m, range);
    if (!active.empty())
      for (std::size_t i = range.offset; i < range.end(); ++i)
        if (active[i] == 0) m[i] = 0;
    kernels::FrozenUpdateArrays arrays = frozen_arrays(range, params);
    arrays.exp_avg = m.data() + range.offset;
    kernels::frozen_update(arrays, c[group]);
  });
}

// The reference's first step(): buffers are tried out on a momentum of zero,
// groups that stay exact lose nothing of it, and no parameter moves. They get
// a gradient averaged twice, by the engine and by themselves.
void OnebitAdam::Impl::initialization_step(View params, View grads,
                                           StepMeter& meter) {
  sum(grads, parts.all, meter);
  const auto mean = static_cast<float>(1.0 / comm.size());
  for (float& g : grads.as<float>()) g *= mean;
  observe_exact(grads);
  sum(grads, parts.exact, meter);
  ++steps;
  const auto p = params.as<float>();
  std::vector<float> unmoved(p.begin(), p.end());
  for_group_ranges(pool, parts.exact, [&](Range range, std::size_t) {
    adam.apply(steps, range, unmoved, grads, mean);
  });
  if (compresses()) {
    const auto m = adam.exp_avg().as<float>();
    the_exchange().run(
        [&](std::size_t b) {
          return kernels::SignInput{
              .values = m.data() + parts.blocks.blocks()[b].values.offset};
        },
        [](std::size_t, Signs) {});
    exchange->clear_errors();
  }
  initialized = true;
}

void OnebitAdam::Impl::observe_exact(ConstView grads) {
  if (observer == nullptr) return;
  for (const GroupRange& r : parts.exact)
    observer->exact(r.range, grads.subview(r.range.offset, r.range.size));
}

bool OnebitAdam::Impl::is_last_exact_step() {
  if (options.freeze_step != kAutoFreeze) return steps >= options.freeze_step;
  double total = 0;
  for (const GroupRange& r : parts.compressed) {
    const double beta2 = adam.group_options(r.group).beta2;
    const ConstView v =
        adam.exp_avg_sq().view().subview(r.range.offset, r.range.size);
    total +=
        sum_of_abs(pool, v) / (1 - std::pow(beta2, static_cast<double>(steps)));
  }
  return freeze.observe(total);
}

// The variance as it is after this step becomes the denominator of all steps
// to come, in its own memory where nothing else needs it.
void OnebitAdam::Impl::enter_compressed_stage() {
  Buffer& v = adam.exp_avg_sq();
  if (policy.masks_before_compression) {
    std::vector<Range> frozen;
    for (const GroupRange& r : parts.compressed) frozen.push_back(r.range);
    set_active(active_elements(
        std::as_const(v).as<float>(), frozen, [&](std::size_t i) {
          return parts.mask.empty() ? 1.0f : parts.mask[i];
        }));
  }
  const bool in_place = policy.floors_denominator && parts.exact.empty();
  Buffer d = in_place ? Buffer() : Buffer::of<float>(v.size());
  float* const from = v.as<float>().data();
  float* const to = in_place ? from : d.as<float>().data();
  for_group_ranges(pool, parts.compressed, [&](Range range, std::size_t group) {
    kernels::denominator(from + range.offset, to + range.offset, range.size,
                         adam.coefficients(group, steps, 1));
  });
  denominator = in_place ? std::move(v) : std::move(d);
  if (policy.floors_denominator)
    apply_denominator_floor(denominator.as<float>(), parts.blocks,
                            options.denom_floor);
  frozen_at = steps;
}

void OnebitAdam::Impl::set_active(std::vector<std::uint8_t> elements) {
  active = std::move(elements);
  if (!compresses()) return;
  the_exchange().set_active(
      active.empty() ? compress::ActiveMask()
                     : compress::ActiveMask(parts.blocks, [&](std::size_t i) {
                         return active[i] != 0;
                       }));
}

OnebitAdam::OnebitAdam(comm::Communicator& comm, const ParameterLayout& layout,
                       const OnebitAdamOptions& options) {
  options.validate(layout);
  impl_ = std::make_unique<Impl>(comm, layout, options);
  comm::require_same(
      comm, "parameter layout and options",
      layout.describe() + impl_->adam.describe() + describe(options));
}

OnebitAdam::~OnebitAdam() = default;

StepReport OnebitAdam::step(View params, View grads) {
  require_step_views(params, grads, impl_->adam.layout().size());
  return impl_->step(params, grads);
}

std::int64_t OnebitAdam::steps() const noexcept { return impl_->steps; }

std::int64_t OnebitAdam::skipped_steps() const noexcept {
  return impl_->skipped;
}

Phase OnebitAdam::phase() const noexcept {
  return impl_->frozen_at == 0 ? Phase::kExact : Phase::kCompressed;
}

void OnebitAdam::set_learning_rate(std::size_t group, double learning_rate) {
  impl_->adam.set_learning_rate(group, learning_rate);
}

double OnebitAdam::learning_rate(std::size_t group) const {
  return impl_->adam.learning_rate(group);
}

std::size_t OnebitAdam::num_groups() const noexcept {
  return impl_->adam.num_groups();
}

StateDict OnebitAdam::state_dict() const { return impl_->save(); }

void OnebitAdam::load_state_dict(const StateDict& state) { impl_->load(state); }

std::int64_t OnebitAdam::frozen_at() const noexcept { return impl_->frozen_at; }

double OnebitAdam::residual_ratio() const {
  if (!impl_->exchange || impl_->frozen_at == 0) return 0;
  const Buffer m = impl_->momentum();
  const double norm = sum_of_squares(impl_->pool, m.view());
  const double residual =
      sum_of_squares(impl_->pool, impl_->exchange->worker_error());
  return norm == 0 ? 0 : std::sqrt(residual / norm);
}

void OnebitAdam::set_observer(compress::WireObserver* observer) noexcept {
  impl_->observer = observer;
  if (impl_->exchange) impl_->exchange->set_observer(observer);
}

}  // namespace thinwire::optim

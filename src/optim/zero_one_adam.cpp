// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/zero_one_adam.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/require.h"
#include "optim/low_bit_options.h"
#include "optim/zero_one_adam_impl.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/local_step.h"

namespace thinwire::optim {

using kernels::AdamCoefficients;

ZeroOneAdamImpl::ZeroOneAdamImpl(comm::Communicator& c,
                                 const ParameterLayout& layout,
                                 const ZeroOneAdamOptions& o)
    : Impl(c, layout, settings_of(o)),
      options(o),
      schedule(o),
      lrs(layout.num_groups()),
      decay(layout.num_groups(), 1) {
  denominator = Buffer::of<float>(layout.size());
}

// ---- one step
void ZeroOneAdamImpl::take_step(const StepInput& in, StepMeter& meter,
                                StepReport& report) {
  report.phase = phase();
  if (is_frozen())
    frozen_step(in, meter, report);
  else if (report.phase == Phase::kExact)
    variance_step(in, meter, report);
  else
    one_bit_step(in, meter, report);
  if (report.applied && steps == options.var_freeze_step) freeze(in.params);
}

// ---- before the freeze
void ZeroOneAdamImpl::variance_step(const StepInput& in, StepMeter& meter,
                                    StepReport& report) {
  const auto grad_scale = average_exactly(in, meter, report);
  if (!grad_scale) return;
  ++steps;
  ++var_updates;
  const std::vector<AdamCoefficients> c = variance_coefficients(*grad_scale);
  keep_momentum_as_values();
  const auto m = adam.exp_avg().as<float>();
  const auto v = adam.exp_avg_sq().as<float>();
  // Exact steps know nothing of heavy elements: their gradients are whole.
  for (const HeavyElement& element : block_denominators.heavy())
    m[element.index] /= element.factor;
  for_blocks([&](std::size_t b) {
    const Range& at = parts.blocks.blocks()[b].values;
    const AdamCoefficients& own = c[parts.block_group[b]];
    kernels::moments(m.data() + at.offset, v.data() + at.offset,
                     in.grads.subview(at.offset, at.size), own);
    kernels::denominator(v.data() + at.offset,
                         denominator.as<float>().data() + at.offset, at.size,
                         own);
  });
  fit_denominators(participations(v, parts.compressed, parts.mask));
  for_blocks([&](std::size_t b) {
    const Range& at = parts.blocks.blocks()[b].values;
    kernels::FrozenUpdateArrays arrays = frozen_arrays(at, in);
    arrays.exp_avg = m.data() + at.offset;
    kernels::frozen_update(arrays, c[parts.block_group[b]]);
  });
  schedule.variance_updated();
}

// Its next update finds the variance that its denominator would have.
void ZeroOneAdamImpl::begin_variance(std::size_t element, float d) {
  if (is_frozen()) return;
  const std::size_t group = adam.layout().parameter_at(element).group;
  adam.exp_avg_sq().as<float>()[element] =
      d * d / adam.coefficients(group, var_updates, 1).exp_avg_sq_scale;
}

// v is corrected by the number of its updates, not of steps.
std::vector<AdamCoefficients> ZeroOneAdamImpl::variance_coefficients(
    double grad_scale) const {
  std::vector<AdamCoefficients> c = coefficients(grad_scale);
  for (std::size_t g = 0; g < c.size(); ++g)
    c[g].exp_avg_sq_scale =
        adam.coefficients(g, var_updates, 1).exp_avg_sq_scale;
  return c;
}

void ZeroOneAdamImpl::one_bit_step(const StepInput& in, StepMeter& meter,
                                   StepReport& report) {
  const auto grad_scale = clip_by_estimate(in, meter, report);
  if (!grad_scale) return;
  ++steps;
  prepare_gradients(in, *grad_scale, meter, report);
  if (options.exchanged == Exchanged::kMomentum) {
    momentum_step(in, coefficients(*grad_scale), meter);
    return;
  }
  Buffer values = Buffer::of<float>(in.grads.size());
  kernels::convert(in.grads, values.view());
  if (*grad_scale != 1)
    for (float& g : values.as<float>()) g *= static_cast<float>(*grad_scale);
  if (compresses())
    meter.compressed(the_exchange(),
                     [&](auto& all) { (void)all.all_reduce(values.view()); });
  StepInput averaged = in;
  averaged.grads = values.view();
  step_by_own_momentum(averaged, coefficients(1));
}

// The residuals measured momentum until now, lr times momentum from now on.
void ZeroOneAdamImpl::freeze(View params) {
  origin = copy_of(params);
  accumulator = Buffer::of<float>(params.size());
  adam.exp_avg_sq() = Buffer();
  if (exchange) exchange->clear_errors();
}

// ---- after the freeze
void ZeroOneAdamImpl::frozen_step(const StepInput& in, StepMeter& meter,
                                  StepReport& report) {
  const bool syncs = report.phase == Phase::kCompressed;
  const auto grad_scale = syncs ? clip_by_estimate(in, meter, report)
                                : clip_locally(in, meter, report);
  if (!report.applied) return;
  ++steps;
  if (syncs)
    prepare_gradients(in, *grad_scale, meter, report);
  else if (grad_scale)
    prepare_gradients_locally(in, *grad_scale);
  const std::vector<AdamCoefficients> c = coefficients(grad_scale.value_or(1));
  for (std::size_t g = 0; g < c.size(); ++g) {
    const double lr = adam.learning_rate(g);
    lrs[g] += lr * c[g].exp_avg_scale;
    decay[g] *= 1 - lr * c[g].decoupled_decay;
  }
  // Without a learning rate nothing has moved: there is nothing to sync.
  if (syncs && some_group_moved() && compresses()) {
    keep_momentum_of_resting_groups(in.grads, c);
    meter.compressed(the_exchange(), [&](auto&) {
      sync(in.params, in.low_precision,
           [&](std::size_t b) { return sync_input(b, in.grads, c); });
    });
  } else {
    if (grad_scale)
      local_step(in, c);
    else
      leave_out_step();
    if (syncs && some_group_moved()) sync_alone(in.params);
  }
  schedule.local_step_taken();
}

// By this rank's own norm; nothing where its gradient is not finite.
std::optional<double> ZeroOneAdamImpl::clip_locally(const StepInput& in,
                                                    StepMeter& meter,
                                                    StepReport& report) {
  const double own = exact_average.local_squares(in.grads);
  report.grad_norm_is_estimate = true;
  if (skips(in)) {
    if (in.skips_together) {
      report.nonfinite_rank = first_rank(!std::isfinite(own), meter);
      report.applied = report.nonfinite_rank < 0;
      if (!report.applied) return std::nullopt;
    }
    if (!std::isfinite(own)) {
      left_out_a_step = true;
      return std::nullopt;
    }
  }
  report.grad_norm = estimated_norm(std::sqrt(own) / in.loss_scale);
  report.clip_factor = clip(report.grad_norm);
  return report.clip_factor / in.loss_scale;
}

int ZeroOneAdamImpl::first_rank(bool own, StepMeter& meter) {
  const std::uint8_t flag = own ? 1 : 0;
  std::vector<std::uint8_t> flags(static_cast<std::size_t>(comm.size()));
  meter.waiting([&] { comm.all_gather(std::span(&flag, 1), flags); });
  const auto first = std::find(flags.begin(), flags.end(), 1);
  return first == flags.end() ? -1 : static_cast<int>(first - flags.begin());
}

void ZeroOneAdamImpl::local_step(const StepInput& in,
                                 std::span<const AdamCoefficients> c) {
  if (adam.exp_avg().empty())
    adam.exp_avg() = Buffer::of<float>(adam.layout().size());
  for_blocks([&](std::size_t b) {
    const Range& at = parts.blocks.blocks()[b].values;
    const std::size_t group = parts.block_group[b];
    kernels::LocalStepArrays arrays{
        .params = in.params.as<float>().data() + at.offset,
        .origin = origin.as<float>().data() + at.offset,
        .exp_avg = adam.exp_avg().as<float>().data() + at.offset,
        .accumulated = accumulator.as<float>().data() + at.offset,
        .from_zero = !accumulated,
        .denominator = denominator.as<float>().data() + at.offset,
        .grads = in.grads.subview(at.offset, at.size),
        .active = active_words(b),
        .low_precision = part_of(in.low_precision, at)};
    if (momentum_is_signs) arrays.mean = mean_momentum(b);
    kernels::local_step(arrays, static_cast<float>(decay[group]), c[group]);
  });
  momentum_is_signs = false;
  accumulated = true;
}

// u says that the interval has begun, as on the ranks that took the step:
// whether there is something to sync must be the same on all of them.
void ZeroOneAdamImpl::leave_out_step() {
  const auto u = accumulator.as<float>();
  if (!accumulated) std::fill(u.begin(), u.end(), 0.0f);
  accumulated = true;
}

LowBitSettings settings_of(const ZeroOneAdamOptions& o) {
  return low_bit_settings(
      "zero_one_adam",
      fmt::format(
          "var_freeze_step={} var_update_scaler={} "
          "local_step_scaler={} local_step_clipper={} exchanged={}",
          o.var_freeze_step, o.var_update_scaler, o.local_step_scaler,
          o.local_step_clipper,
          o.exchanged == Exchanged::kMomentum ? "momentum" : "gradient"),
      o);
}

void ZeroOneAdamOptions::validate(const ParameterLayout& layout) const {
  settings_of(*this).validate(layout);
  require(!amsgrad, "amsgrad",
          "false (0/1 Adam does not support it: its variance is frozen)",
          amsgrad);
  const bool reference = semantics == Semantics::kDeepSpeed;
  const std::int64_t least = reference ? 0 : 1;
  require(var_freeze_step >= least, "var_freeze_step",
          fmt::format(">= {}", least), var_freeze_step);
  require(var_update_scaler >= 1, "var_update_scaler", ">= 1",
          var_update_scaler);
  require(local_step_scaler >= 1, "local_step_scaler", ">= 1",
          local_step_scaler);
  require(local_step_clipper >= 1, "local_step_clipper", ">= 1",
          local_step_clipper);
  require(!reference || exchange.verify_every == 0, "verify_every",
          "0 with deepspeed semantics, whose ranks differ even after a sync",
          exchange.verify_every);
}

ZeroOneAdam::ZeroOneAdam(comm::Communicator& comm,
                         const ParameterLayout& layout,
                         const ZeroOneAdamOptions& options)
    : LowBitOptimizer([&]() -> std::unique_ptr<Impl> {
        options.validate(layout);
        if (options.semantics == Semantics::kDeepSpeed)
          return make_deepspeed_zero_one_adam(comm, layout, options);
        return std::make_unique<ZeroOneAdamImpl>(comm, layout, options);
      }()) {}

ZeroOneAdam::~ZeroOneAdam() = default;

}  // namespace thinwire::optim

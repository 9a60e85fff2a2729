// SPDX-License-Identifier: Apache-2.0
// Gradients until the step, and the step itself.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/require.h"
#include "deepspeed/rounded_sum.h"
#include "deepspeed/zero_impl.h"
#include "optim/verification.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::deepspeed {

using optim::StepReport;
using zero::Fragment;
using zero::ShardBucket;

namespace {

bool is_finite(ConstView values) {
  const Buffer wide = converted(values, DType::kFloat32);
  const auto floats = wide.as<float>();
  return std::all_of(floats.begin(), floats.end(),
                     [](float x) { return std::isfinite(x); });
}

// The root is taken and squared again in double, as in DeepSpeed.
double square_of_norm(ConstView values) {
  const Buffer wide = converted(values, DType::kFloat32);
  double sum = 0;
  for (const float x : wide.as<float>()) sum += static_cast<double>(x) * x;
  const double norm = std::sqrt(sum);
  return norm * norm;
}

}  // namespace

TorchAdamStep TorchAdamStep::of(const optim::AdamOptions& o,
                                double learning_rate, std::int64_t step) {
  require(!o.epsilon_inside_sqrt, "epsilon_inside_sqrt",
          "false with deepspeed semantics", o.epsilon_inside_sqrt);
  const auto correction = [&](double beta) {
    return o.bias_correction ? 1 - std::pow(beta, static_cast<double>(step))
                             : 1.0;
  };
  const double decay = learning_rate * o.weight_decay;
  return {
      .decay = o.decoupled_decay ? static_cast<float>(1 - decay) : 1.0f,
      .l2_decay = o.decoupled_decay ? 0.0f : static_cast<float>(o.weight_decay),
      .beta1 = static_cast<float>(o.beta1),
      .one_minus_beta1 = static_cast<float>(1 - o.beta1),
      .beta2 = static_cast<float>(o.beta2),
      .one_minus_beta2 = static_cast<float>(1 - o.beta2),
      .root_of_correction2 = static_cast<float>(std::sqrt(correction(o.beta2))),
      .epsilon = static_cast<float>(o.epsilon),
      .minus_step_size =
          static_cast<float>(-(learning_rate / correction(o.beta1)))};
}

void torch_adam(const TorchAdamStep& c, const TorchAdamArrays& arrays) {
  for (std::size_t i = 0; i < arrays.params.size(); ++i) {
    float p = arrays.params[i] * c.decay;
    float g = arrays.grads[i];
    // If l2_decay is 0, torch omits the product, which would be NaN for an
    // infinite parameter.
    if (c.l2_decay != 0) g += c.l2_decay * p;
    const float m = arrays.exp_avg[i] * c.beta1 + c.one_minus_beta1 * g;
    const float v = arrays.exp_avg_sq[i] * c.beta2 + c.one_minus_beta2 * g * g;
    const float d = std::sqrt(v) / c.root_of_correction2 + c.epsilon;
    p += c.minus_step_size * m / d;
    arrays.params[i] = p;
    arrays.exp_avg[i] = m;
    arrays.exp_avg_sq[i] = v;
  }
}

// ---- gradients

// Stage 2 sums averaged gradients, regardless of accumulation_dtype.
DType ZeroOptimizer::Impl::sum_dtype() const noexcept {
  return options.stage == 1 ? options.accumulation_dtype : options.dtype;
}

bool ZeroOptimizer::Impl::begin(exchange::Backward which) {
  if (which.is_first || options.stage == 1) has_averaged = false;
  if (which.is_first || options.stage == 2)
    sums = Buffer(layout.size(), sum_dtype());
  return false;
}

void ZeroOptimizer::Impl::check(std::size_t parameter,
                                ConstView gradient) const {
  zero::require_gradient(layout.parameters()[parameter], options.dtype,
                         gradient);
}

// Sums start at zero, so a parameter without a gradient needs no work.
void ZeroOptimizer::Impl::store(const exchange::GradientPart& part) {
  if (part.values.empty()) return;
  const Buffer rounded = converted(part.values, options.dtype);
  const View sum = sums.view().subview(places[part.parameter], part.range.size);
  if (part.is_first || options.stage == 2)
    kernels::convert(rounded.view(), sum);
  else
    kernels::accumulate(sum, rounded.view());
}

void ZeroOptimizer::Impl::end() {
  if (options.stage == 2 || window.is_complete()) reduce();
}

// Stage 1 may not have known that the last backward was the final one.
void ZeroOptimizer::Impl::finish() {
  if (!has_averaged) reduce();
}

void ZeroOptimizer::Impl::reduce() {
  const Buffer whole = converted(sums.view(), options.dtype);
  SumScaling scaling;
  if (options.average && options.reduce_scatter)
    scaling.divisor = static_cast<float>(comm.size());
  else if (options.average)
    scaling = sum_scaling(options.prescale, options.predivide, comm.size());
  std::size_t begin = 0;
  for (const ShardBucket& group : shards.buckets()) {
    const Buffer piece = rounded_sum(
        comm, whole.view().subview(begin, group.range.size), group.counts,
        scaling, options.communication_dtype.value_or(options.dtype));
    const View slice =
        averaged.view().subview(group.positions[rank], group.counts[rank]);
    if (has_averaged)
      kernels::accumulate(slice, piece.view());
    else
      kernels::convert(piece.view(), slice);
    begin += group.range.size;
  }
  has_averaged = true;
}

// ---- the step

void ZeroOptimizer::Impl::take_step(StepReport& report,
                                    optim::StepMeter& meter) {
  const auto scale_before = static_cast<float>(scale.value());
  report.applied = !overflows();
  if (!report.applied && scale.is_last_chance())
    scale.stop(comm, layout,
               {.first = first_nonfinite(),
                .is_averaged = true,
                .last_good_step = counts.steps});
  scale.update(!report.applied);
  report.loss_scale = report.applied ? scale.value() : scale_before;
  has_averaged = false;
  if (!report.applied) {
    ++counts.skipped;
    return;
  }
  const float total = scaled_norm();
  report.grad_norm = total / scale_before;
  const float clip = clip_divisor(total);
  report.clip_factor = 1 / clip;
  ++counts.steps;
  update(unscaling_factor(clip));
  meter.waiting([&] { gather_params(); });
  const std::int64_t every = options.exchange.verify_every;
  if (every != 0 && counts.steps % every == 0)
    optim::verify_same(comm, pool, layout, params,
                       fmt::format("step {}\n{}{}", counts.steps,
                                   adam.describe(), options.describe()));
}

bool ZeroOptimizer::Impl::overflows() {
  if (!scale.is_used() && !options.exchange.skip_nonfinite) return false;
  std::uint8_t flag = is_finite(averaged.view()) ? 0 : 1;
  comm.all_reduce(std::span(&flag, 1), comm::ReduceOp::kMax);
  return flag != 0;
}

// Returns this rank's first non-finite gradient, or -1.
std::int64_t ZeroOptimizer::Impl::first_nonfinite() const {
  std::int64_t first = -1;
  for (const Fragment& f : fragments) {
    const auto index = static_cast<std::int64_t>(f.parameter);
    if (!is_finite(averaged.view().subview(f.position, f.range.size)) &&
        (first < 0 || index < first))
      first = index;
  }
  return first;
}

float ZeroOptimizer::Impl::scaled_norm() {
  const std::size_t groups = layout.num_groups();
  std::vector<double> squares(groups);
  for (const Fragment& f : fragments)
    squares[layout.parameters()[f.parameter].group] +=
        square_of_norm(averaged.view().subview(f.position, f.range.size));
  std::vector<float> own;
  for (const double square : squares) own.push_back(static_cast<float>(square));
  std::vector<float> all(groups * static_cast<std::size_t>(comm.size()));
  comm.all_gather(own, all);
  float total = 0;
  for (std::size_t g = 0; g < groups; ++g) {
    float sum = all[g];
    for (std::size_t at = g + groups; at < all.size(); at += groups)
      sum += all[at];
    // DeepSpeed marks a non-finite norm by -1, whose square hides the mark.
    const float norm = std::isfinite(sum) ? std::sqrt(sum) : -1.0f;
    total += norm * norm;
  }
  return std::sqrt(total);
}

// Returns the factor by which the gradient exceeds the limit, judged by the
// next step's loss scale.
float ZeroOptimizer::Impl::clip_divisor(float total) const {
  const auto most = static_cast<float>(options.exchange.max_grad_norm);
  if (most <= 0) return 1;
  const auto next = static_cast<float>(scale.value());
  const float clip = (total / next + static_cast<float>(1e-6)) / most;
  return clip < 1 ? 1 : clip;
}

// If the norm takes part, all arithmetic is in float.
float ZeroOptimizer::Impl::unscaling_factor(float clip) const {
  if (options.exchange.max_grad_norm <= 0)
    return static_cast<float>(1 / scale.value());
  return 1 / (clip * static_cast<float>(scale.value()));
}

void ZeroOptimizer::Impl::update(float factor) {
  Buffer wide = converted(averaged.view(), DType::kFloat32);
  const auto grads = wide.as<float>();
  for (float& g : grads) g *= factor;
  for (std::size_t g = 0; g < layout.num_groups(); ++g) {
    const ShardBucket& group = shards.buckets()[g];
    const auto part = [&](std::span<float> array) {
      return array.subspan(group.positions[rank], group.counts[rank]);
    };
    torch_adam(TorchAdamStep::of(adam.group_options(g), adam.learning_rate(g),
                                 counts.steps),
               {.params = part(masters.as<float>()),
                .exp_avg = part(adam.exp_avg().as<float>()),
                .exp_avg_sq = part(adam.exp_avg_sq().as<float>()),
                .grads = part(grads)});
  }
}

// Rounds the masters to parameters and gathers them.
void ZeroOptimizer::Impl::gather_params() {
  Buffer all(layout.size(), options.dtype);
  std::size_t begin = 0;
  for (const ShardBucket& group : shards.buckets()) {
    const Buffer piece = converted(
        masters.view().subview(group.positions[rank], group.counts[rank]),
        options.dtype);
    comm.all_gather(piece.view(), all.view().subview(begin, group.range.size),
                    group.counts);
    begin += group.range.size;
  }
  for (std::size_t p = 0; p < places.size(); ++p) {
    const Parameter& parameter = layout.parameters()[p];
    kernels::convert(all.view().subview(places[p], parameter.size),
                     params.subview(parameter.offset, parameter.size));
  }
}

}  // namespace thinwire::deepspeed

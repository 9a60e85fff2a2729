// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's stages 1 and 2, operation by operation, with what is wrong in
// their arithmetic: gradients are divided before they are added and every
// addition is rounded, they are unscaled and clipped by the scale of the next
// step, and stage 2 adds up backwards in the type of the parameters.
#include "shard/reference_zero.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/require.h"
#include "optim/verification.h"
#include "shard/minimum_scale.h"
#include "shard/rounded_sum.h"
#include "shard/torch_adam.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::shard {

using optim::StepInput;
using optim::StepReport;

namespace {

ZeroOptions with_reference_scaler(ZeroOptions options) {
  options.loss_scale = precision::zero_loss_scaler(options.loss_scale);
  return options;
}

optim::Adam& as_torch_adam(optim::UpdateRule* rule) {
  auto* adam = dynamic_cast<optim::Adam*>(rule);
  require(adam != nullptr, "rule", "adam with deepspeed semantics",
          rule == nullptr ? "none" : rule->name());
  require(adam->exp_avg().dtype() == DType::kFloat32, "state_dtype",
          "float32 with deepspeed semantics",
          to_string(adam->exp_avg().dtype()));
  for (std::size_t g = 0; g < adam->num_groups(); ++g)
    (void)TorchAdamStep::of(adam->group_options(g), 0, 1);
  return *adam;
}

bool is_finite(ConstView values) {
  const Buffer wide = converted(values, DType::kFloat32);
  const auto floats = wide.as<float>();
  return std::all_of(floats.begin(), floats.end(),
                     [](float x) { return std::isfinite(x); });
}

// A norm is taken and squared again, in double.
double square_of_norm(ConstView values) {
  const Buffer wide = converted(values, DType::kFloat32);
  double sum = 0;
  for (const float x : wide.as<float>()) sum += static_cast<double>(x) * x;
  const double norm = std::sqrt(sum);
  return norm * norm;
}

}  // namespace

ReferenceZero::ReferenceZero(comm::Communicator& c, const ParameterLayout& l,
                             const MakeRule& make_rule, View p,
                             const ZeroOptions& settings, ConstView initial)
    : Impl(c, l, p, with_reference_scaler(settings)),
      shards_(ShardLayout::of(l, c.size(),
                              {.placement = Placement::kContiguous,
                               .round_robin = settings.round_robin})),
      rank_(static_cast<std::size_t>(c.rank())),
      fragments_(shards_.fragments(c.rank())),
      rule_(make_rule(shards_.layout_of_shard(l, c.rank()))),
      adam_(as_torch_adam(rule_.get())),
      masters_(Buffer::of<float>(shards_.shard_size(c.rank()))),
      averaged_(masters_.size(), options.dtype),
      sums_(l.size(), sum_dtype()),
      places_(l.parameters().size()) {
  std::size_t place = 0;
  for (const std::size_t parameter : shards_.order()) {
    places_[parameter] = place;
    place += layout.parameters()[parameter].size;
  }
  ReferenceZero::read_masters(initial);
}

// ---- gradients

// Stage 2 adds up what has been averaged, whatever accumulation_dtype says.
DType ReferenceZero::sum_dtype() const noexcept {
  return options.stage == 1 ? options.accumulation_dtype : options.dtype;
}

void ReferenceZero::begin_backward(ZeroOptimizer::Backward which) {
  which_ = which;
  if (which.is_first || options.stage == 1) has_averaged_ = false;
  if (which.is_first || options.stage == 2)
    sums_ = Buffer(layout.size(), sum_dtype());
}

void ReferenceZero::collect(std::size_t index, ConstView gradient) {
  const Buffer rounded = converted(gradient, options.dtype);
  const View sum = sums_.view().subview(places_[index], gradient.size());
  if (which_.is_first || options.stage == 2)
    kernels::convert(rounded.view(), sum);
  else
    kernels::accumulate(sum, rounded.view());
}

void ReferenceZero::end_backward() {
  if (options.stage == 2 || which_.is_last) reduce();
}

// Stage 1 may not have known that the last backward was the last.
void ReferenceZero::finish() {
  if (!has_averaged_) reduce();
}

void ReferenceZero::reduce() {
  const Buffer whole = converted(sums_.view(), options.dtype);
  const SumScaling scaling =
      options.average ? sum_scaling(options.reduce_scatter, 1, comm.size())
                      : SumScaling{};
  std::size_t begin = 0;
  for (const Bucket& group : shards_.buckets()) {
    const Buffer piece = rounded_sum(
        comm, whole.view().subview(begin, group.range.size), group.counts,
        scaling, options.communication_dtype.value_or(options.dtype));
    const View slice =
        averaged_.view().subview(group.positions[rank_], group.counts[rank_]);
    if (has_averaged_)
      kernels::accumulate(slice, piece.view());
    else
      kernels::convert(piece.view(), slice);
    begin += group.range.size;
  }
  has_averaged_ = true;
}

// Every backward leaves when it has ended, so this one has not left.
void ReferenceZero::cancel_backward() { has_averaged_ = false; }

// ---- the step

StepReport ReferenceZero::step(const StepInput& in) {
  require(in.loss_scale == 1, "loss_scale", "1 with deepspeed semantics",
          in.loss_scale);
  StepReport report;
  {
    optim::StepMeter meter(comm, report);
    if (!in.grads.empty()) collect_all(in.grads);
    meter.waiting([&] { finish(); });
    take_step(report, meter);
  }
  return report;
}

void ReferenceZero::collect_all(ConstView whole) {
  begin_backward({});
  for (std::size_t p = 0; p < layout.parameters().size(); ++p) {
    const Parameter& parameter = layout.parameters()[p];
    collect(p, whole.subview(parameter.offset, parameter.size));
  }
  end_backward();
}

void ReferenceZero::take_step(StepReport& report, optim::StepMeter& meter) {
  const auto scale_before = static_cast<float>(loss_scale());
  report.applied = !overflows();
  if (!report.applied && is_last_chance(*this))
    stop_at_minimum_scale(*this, first_nonfinite());
  if (scales()) scaler.update(!report.applied);
  report.loss_scale = loss_scale();
  has_averaged_ = false;
  if (!report.applied) {
    ++skipped;
    return;
  }
  const float total = scaled_norm();
  report.grad_norm = total / scale_before;
  const float clip = clip_divisor(total);
  report.clip_factor = 1 / clip;
  ++steps;
  update(unscaling_factor(clip));
  meter.waiting([&] { gather_params(); });
  const std::int64_t every = options.exchange.verify_every;
  if (every != 0 && steps % every == 0)
    optim::verify_same(comm, pool, layout, params,
                       fmt::format("step {}\n{}{}", steps, rule_->describe(),
                                   options.describe()));
}

bool ReferenceZero::overflows() const {
  if (!scales() && !options.exchange.skip_nonfinite) return false;
  std::uint8_t flag = is_finite(averaged_.view()) ? 0 : 1;
  comm.all_reduce(std::span(&flag, 1), comm::ReduceOp::kMax);
  return flag != 0;
}

// Of this rank's; -1.
std::int64_t ReferenceZero::first_nonfinite() const {
  std::int64_t first = -1;
  for (const Fragment& f : fragments_) {
    const auto index = static_cast<std::int64_t>(f.parameter);
    if (!is_finite(averaged_.view().subview(f.position, f.range.size)) &&
        (first < 0 || index < first))
      first = index;
  }
  return first;
}

float ReferenceZero::scaled_norm() const {
  const std::size_t groups = layout.num_groups();
  std::vector<double> squares(groups);
  for (const Fragment& f : fragments_)
    squares[layout.parameters()[f.parameter].group] +=
        square_of_norm(averaged_.view().subview(f.position, f.range.size));
  std::vector<float> own;
  for (const double square : squares) own.push_back(static_cast<float>(square));
  std::vector<float> all(groups * static_cast<std::size_t>(comm.size()));
  comm.all_gather(own, all);
  float total = 0;
  for (std::size_t g = 0; g < groups; ++g) {
    float sum = all[g];
    for (std::size_t at = g + groups; at < all.size(); at += groups)
      sum += all[at];
    // The reference's mark for what is not finite, forgotten by squaring.
    const float norm = std::isfinite(sum) ? std::sqrt(sum) : -1.0f;
    total += norm * norm;
  }
  return std::sqrt(total);
}

// By how much the gradient is too long, judged by the next step's scale.
float ReferenceZero::clip_divisor(float total) const {
  const auto most = static_cast<float>(options.exchange.max_grad_norm);
  if (most <= 0) return 1;
  const auto scale = static_cast<float>(loss_scale());
  const float clip = (total / scale + static_cast<float>(1e-6)) / most;
  return clip < 1 ? 1 : clip;
}

// Where the norm takes part it is all in float.
float ReferenceZero::unscaling_factor(float clip) const {
  if (options.exchange.max_grad_norm <= 0)
    return static_cast<float>(1 / loss_scale());
  return 1 / (clip * static_cast<float>(loss_scale()));
}

void ReferenceZero::update(float factor) {
  Buffer wide = converted(averaged_.view(), DType::kFloat32);
  const auto grads = wide.as<float>();
  for (float& g : grads) g *= factor;
  for (std::size_t g = 0; g < layout.num_groups(); ++g) {
    const Bucket& group = shards_.buckets()[g];
    const auto part = [&](std::span<float> array) {
      return array.subspan(group.positions[rank_], group.counts[rank_]);
    };
    torch_adam(TorchAdamStep::of(adam_.group_options(g), adam_.learning_rate(g),
                                 steps),
               {.params = part(masters_.as<float>()),
                .exp_avg = part(adam_.exp_avg().as<float>()),
                .exp_avg_sq = part(adam_.exp_avg_sq().as<float>()),
                .grads = part(grads)});
  }
}

// Collective: parameters are the masters, rounded.
void ReferenceZero::gather_params() {
  Buffer all(layout.size(), options.dtype);
  std::size_t begin = 0;
  for (const Bucket& group : shards_.buckets()) {
    const Buffer piece = converted(
        masters_.view().subview(group.positions[rank_], group.counts[rank_]),
        options.dtype);
    comm.all_gather(piece.view(), all.view().subview(begin, group.range.size),
                    group.counts);
    begin += group.range.size;
  }
  for (std::size_t p = 0; p < places_.size(); ++p) {
    const Parameter& parameter = layout.parameters()[p];
    kernels::convert(all.view().subview(places_[p], parameter.size),
                     params.subview(parameter.offset, parameter.size));
  }
}

std::unique_ptr<ZeroOptimizer::Impl> make_reference_zero(
    comm::Communicator& comm, const ParameterLayout& layout,
    const MakeRule& make_rule, View params, const ZeroOptions& options,
    ConstView initial) {
  return std::make_unique<ReferenceZero>(comm, layout, make_rule, params,
                                         options, initial);
}

}  // namespace thinwire::shard

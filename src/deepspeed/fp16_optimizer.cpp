// SPDX-License-Identifier: Apache-2.0
#include "thinwire/deepspeed/fp16_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "core/require.h"
#include "deepspeed/own_state.h"
#include "deepspeed/rounded_sum.h"
#include "optim/saved_state.h"
#include "precision/require_16_bit.h"
#include "thinwire/deepspeed/loss_scaler.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::deepspeed {

using optim::StepInput;
using optim::StepReport;

namespace {

float norm(std::span<const float> values) {
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x) * x;
  return static_cast<float>(std::sqrt(sum));
}

}  // namespace

void Fp16Options::validate() const {
  require(std::isfinite(max_grad_norm) && max_grad_norm >= 0, "max_grad_norm",
          "finite and >= 0", max_grad_norm);
  require_predivide(predivide);
  static_cast<void>(loss_scaler(wrapper_loss_scaler(loss_scale)));
}

ParameterLayout wrapped_layout(const ParameterLayout& layout,
                               Fp16Wrapper wrapper) {
  if (wrapper == Fp16Wrapper::kUnfused) return layout;
  std::vector<std::size_t> sizes(layout.num_groups());
  std::size_t group = 0;
  for (const Parameter& p : layout.parameters()) {
    require(
        p.group >= group, "layout", "in the order of its groups",
        fmt::format("'{}' of group {} after group {}", p.name, p.group, group));
    group = p.group;
    sizes[group] += p.size;
  }
  std::vector<ParameterSpec> specs;
  for (std::size_t g = 0; g < sizes.size(); ++g)
    specs.push_back({fmt::format("group.{}", g), {sizes[g]}, g});
  return ParameterLayout::of(std::move(specs));
}

Fp16Optimizer::Fp16Optimizer(comm::Communicator& comm,
                             const ParameterLayout& layout,
                             std::unique_ptr<deepspeed::Optimizer> optimizer,
                             ConstView initial, const Fp16Options& options)
    : comm_(comm),
      layout_(layout),
      wrapped_(wrapped_layout(layout, options.wrapper)),
      optimizer_(std::move(optimizer)),
      options_(options),
      scaler_(loss_scaler(wrapper_loss_scaler(options.loss_scale))) {
  options.validate();
  precision::require_wrapped(optimizer_.get(), initial, layout.size());
  masters_ = Buffer::of<float>(layout.size());
  kernels::convert(initial, masters_.view());
  // Initializes the states as DeepSpeed does, by one step with gradients of
  // zero.
  grads_.resize(layout.size());
  (void)optimizer_->step_averaged({.params = masters_.view(), .grads = grads_});
}

void Fp16Optimizer::set_masters(ConstView params) {
  require(params.size() == layout_.size(), "params",
          fmt::format("{} elements", layout_.size()), params.size());
  kernels::convert(params, masters_.view());
}

void Fp16Optimizer::write_params(View params) const {
  precision::require_params(params, DType::kFloat16, layout_.size());
  kernels::convert(masters_.view(), params);
}

optim::Progress Fp16Optimizer::progress() const {
  optim::Progress progress = optimizer_->progress();
  progress.skipped += skipped_;
  return progress;
}

// ---- the step

StepReport Fp16Optimizer::step(const StepInput& in) {
  precision::require_input(in, DType::kFloat16, layout_.size());
  require(in.loss_scale == 1, "loss_scale", "1 with deepspeed semantics",
          in.loss_scale);
  const bool is_averaged = optimizer_->progress().phase == optim::Phase::kExact;
  const auto halves = in.grads.as<Half>();
  if (is_averaged && comm_.size() > 1) average(halves);
  kernels::convert(in.grads, std::span(grads_));
  const bool overflow = overflows(is_averaged);
  const double scale_before = scaler_.scale();
  scaler_.update(overflow);
  if (overflow) {
    ++skipped_;
    return {.applied = false,
            .phase = optimizer_->progress().phase,
            .loss_scale = scale_before};
  }

  const double total = scaled_norm();
  const double reported =
      options_.wrapper == Fp16Wrapper::kFused ? total / scaler_.scale() : total;
  const auto factor = static_cast<float>(1 / combined_scale(total));
  for (float& g : grads_) g *= factor;
  const StepInput inner{.params = masters_.view(), .grads = grads_};
  StepReport report =
      is_averaged ? optimizer_->step_averaged(inner) : optimizer_->step(inner);
  kernels::convert(masters_.view(), in.params);
  report.grad_norm = reported;
  report.loss_scale = scaler_.scale();
  return report;
}

// Averages like DeepSpeed's engine, which rounds every sum and both products.
void Fp16Optimizer::average(std::span<Half> values) const {
  const double ranks = comm_.size();
  const double before = options_.prescale ? 1 / ranks : 1 / options_.predivide;
  const double after = options_.prescale ? 1 : options_.predivide / ranks;
  const auto scaled = [](Half value, double factor) {
    return factor == 1 ? value
                       : to_half(to_float(value) * static_cast<float>(factor));
  };
  for (Half& value : values) value = scaled(value, before);
  std::vector<Half> all(values.size() * static_cast<std::size_t>(comm_.size()));
  comm_.all_gather(values, all);
  for (std::size_t i = 0; i < values.size(); ++i) {
    Half sum = all[i];
    for (std::size_t at = i + values.size(); at < all.size();
         at += values.size())
      sum = to_half(to_float(sum) + to_float(all[at]));
    values[i] = scaled(sum, after);
  }
}

bool Fp16Optimizer::overflows(bool is_averaged) const {
  std::uint8_t flag = std::all_of(grads_.begin(), grads_.end(),
                                  [](float g) { return std::isfinite(g); })
                          ? 0
                          : 1;
  if (is_averaged) return flag != 0;
  if (observer_ != nullptr) observer_->overflow_flag(flag);
  comm_.all_reduce(std::span(&flag, 1), comm::ReduceOp::kMax);
  return flag != 0;
}

std::span<const float> Fp16Optimizer::gradient_of(const Parameter& p) const {
  return std::span(grads_).subspan(p.offset, p.size);
}

// DeepSpeed's fused wrapper adds squares as Python numbers, whose pow() differs
// from a product or a root in the last bit. Its unfused wrapper adds floats.
double Fp16Optimizer::scaled_norm() const {
  if (options_.wrapper == Fp16Wrapper::kFused) {
    double sum = 0;
    for (const Parameter& p : wrapped_.parameters())
      sum += std::pow(static_cast<double>(norm(gradient_of(p))), 2.0);
    return std::sqrt(std::pow(
        std::pow(static_cast<double>(static_cast<float>(sum)), 0.5), 2.0));
  }
  std::vector<float> sums(wrapped_.num_groups());
  for (const Parameter& p : wrapped_.parameters())
    sums[p.group] += norm(gradient_of(p)) * norm(gradient_of(p));
  double total = 0;
  for (const float sum : sums)
    total += std::pow(std::pow(static_cast<double>(sum), 0.5), 2.0);
  return std::sqrt(total);
}

double Fp16Optimizer::combined_scale(double total) const {
  if (options_.max_grad_norm <= 0) return scaler_.scale();
  const double clip = (total / scaler_.scale() + 1e-6) / options_.max_grad_norm;
  return clip > 1 ? clip * scaler_.scale() : scaler_.scale();
}

// ---- saved state

optim::State Fp16Optimizer::state() const {
  optim::State state = optimizer_->state();
  state.common.put_integer("skipped_steps", progress().skipped);
  state.add_free("masters", masters_.view());
  scaler_.save(state.common);
  return own_state(std::move(state));
}

optim::Notes Fp16Optimizer::load_state_dict(const StateDict& state) {
  require_owner(state);
  return adopt(copy_that_forgets(state))();
}

optim::Optimizer::Adoption Fp16Optimizer::adopt(StateDict state) {
  precision::LossScaler scaler = scaler_;
  // A DeepSpeed file has no loss scale.
  if (state.has_scalar("loss_scale")) scaler.load(state);
  const std::int64_t skipped = optim::saved_count(state, "skipped_steps");
  const auto masters = std::make_shared<Buffer>(
      optim::take_floats(state, "masters", DType::kFloat32, layout_.size()));
  return [this, scaler, skipped, masters,
          of_optimizer = optimizer_->adopt(std::move(state))] {
    optim::Notes notes = of_optimizer();
    scaler_ = scaler;
    // The inner optimizer has already adopted some of the skipped steps.
    skipped_ = skipped - optimizer_->progress().skipped;
    masters_ = std::move(*masters);
    return notes;
  };
}

}  // namespace thinwire::deepspeed

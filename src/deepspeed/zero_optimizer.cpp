// SPDX-License-Identifier: Apache-2.0
#include "thinwire/deepspeed/zero_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/require.h"
#include "deepspeed/rounded_sum.h"
#include "deepspeed/torch_adam.h"
#include "deepspeed/zero_impl.h"
#include "optim/checks.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/error.h"
#include "thinwire/deepspeed/loss_scaler.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::deepspeed {

using optim::StepInput;
using optim::StepReport;
using shard::ShardLayout;

namespace {

void require_array(std::string_view name, ConstView view, DType dtype,
                   std::size_t size) {
  if (view.dtype() != dtype || view.size() != size)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} must be {} of {} elements, got {} of {}", name,
                            to_string(dtype), size, to_string(view.dtype()),
                            view.size()));
}

precision::LossScaler scaler_of(const ZeroOptions& options) {
  if (options.dtype != DType::kFloat16) return precision::LossScaler();
  return loss_scaler(zero_loss_scaler(options.loss_scale));
}

void require_torch_adam(const optim::Adam& adam) {
  require(adam.exp_avg().dtype() == DType::kFloat32, "state_dtype",
          "float32 with deepspeed semantics",
          to_string(adam.exp_avg().dtype()));
  for (std::size_t g = 0; g < adam.num_groups(); ++g)
    (void)TorchAdamStep::of(adam.group_options(g), 0, 1);
}

}  // namespace

ZeroOptimizer::Impl::Impl(comm::Communicator& c, const ParameterLayout& l,
                          const optim::AdamOptions& rule, View p,
                          const ZeroOptions& settings)
    : comm(c),
      layout(l),
      params(p),
      options(settings),
      scale(settings.dtype, scaler_of(settings)),
      pool(settings.exchange.num_threads),
      shards(ShardLayout::of(l, c.size(),
                             {.placement = shard::Placement::kContiguous,
                              .round_robin = settings.round_robin})),
      rank(static_cast<std::size_t>(c.rank())),
      fragments(shards.fragments(c.rank())),
      adam(shards.layout_of_shard(l, c.rank()), rule),
      masters(Buffer::of<float>(shards.shard_size(c.rank()))),
      averaged(masters.size(), options.dtype),
      sums(l.size(), sum_dtype()),
      places(l.parameters().size()),
      window(layout) {
  std::size_t place = 0;
  for (const std::size_t parameter : shards.order()) {
    places[parameter] = place;
    place += layout.parameters()[parameter].size;
  }
}

ZeroOptimizer::ZeroOptimizer(comm::Communicator& comm,
                             const ParameterLayout& layout,
                             const optim::AdamOptions& adam, View params,
                             const ZeroOptions& options, ConstView initial) {
  options.validate();
  require_array("params", params, options.dtype, layout.size());
  if (!initial.empty())
    require_array("initial", initial, DType::kFloat32, layout.size());
  const optim::Adam whole(
      ParameterLayout::of({}, std::max<std::size_t>(1, layout.num_groups())),
      adam);
  require_torch_adam(whole);
  comm::require_same(comm, "parameter layout and options",
                     layout.describe() + whole.describe() + options.describe());
  impl_ = std::make_unique<Impl>(comm, layout, adam, params, options);
  read_masters(initial.empty() ? ConstView(params) : initial);
}

ZeroOptimizer::~ZeroOptimizer() = default;

// ---- gradients one by one

void ZeroOptimizer::begin_backward(Backward which) {
  impl_->window.begin(which);
  impl_->begin();
}

void ZeroOptimizer::collect(std::size_t index, ConstView gradient) {
  impl_->window.require_open(index);
  const Parameter& p = impl_->layout.parameters()[index];
  const DType dtype = impl_->options.dtype;
  const bool fits =
      gradient.dtype() == dtype || gradient.dtype() == DType::kFloat32;
  if (!fits || gradient.size() != p.size)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("gradient of '{}' must be float32 or {} of {} "
                            "elements, got {} of {}",
                            p.name, to_string(dtype), p.size,
                            to_string(gradient.dtype()), gradient.size()));
  impl_->window.collect(index);
  impl_->add(index, gradient);
}

void ZeroOptimizer::end_backward() {
  impl_->window.end();
  impl_->end();
}

// Every backward is reduced when it has ended, so this one has not been sent.
void ZeroOptimizer::cancel_backward() {
  if (!impl_->window.in_backward()) return;
  impl_->window.cancel();
  impl_->has_averaged = false;
}

// ---- steps

StepReport ZeroOptimizer::step(const StepInput& input) {
  Impl& in = *impl_;
  if (in.window.in_backward())
    throw Error(ErrorCode::kFailedPrecondition, "step: inside a backward");
  optim::require_view("params", input.params, in.layout.size(), true, true);
  require(input.params.data() == in.params.data() &&
              input.params.dtype() == in.params.dtype(),
          "params", "the memory given at construction", "other memory");
  require(input.low_precision.empty(), "low_precision", "empty with ZeRO",
          fmt::format("{} elements", input.low_precision.size()));
  require(input.loss_scale == 1, "loss_scale", "1 with deepspeed semantics",
          input.loss_scale);
  const bool has_come = in.window.has_begun();
  if (input.grads.empty() && !has_come && in.layout.size() > 0)
    throw Error(ErrorCode::kFailedPrecondition,
                "step: there was no backward since the last step");
  if (!input.grads.empty() || !has_come)
    optim::require_view("grads", input.grads, in.layout.size(), true, true);
  if (!input.grads.empty() && has_come)
    throw Error(ErrorCode::kFailedPrecondition,
                "step: gradients were handed over one by one; give no others");
  StepReport report;
  {
    optim::StepMeter meter(in.comm, report);
    if (!input.grads.empty()) in.add_all(input.grads);
    meter.waiting([&] { in.finish(); });
    in.window.restart();
    in.take_step(report, meter);
  }
  return report;
}

StepReport ZeroOptimizer::step() {
  return step({.params = impl_->params, .grads = {}});
}

// ---- what it is

const ZeroOptions& ZeroOptimizer::options() const noexcept {
  return impl_->options;
}

double ZeroOptimizer::loss_scale() const noexcept {
  return impl_->scale.value();
}

const ShardLayout& ZeroOptimizer::shards() const noexcept {
  return impl_->shards;
}

std::vector<Range> ZeroOptimizer::buckets() const {
  return {{0, impl_->layout.size()}};
}

std::int64_t ZeroOptimizer::steps() const noexcept {
  return impl_->counts.steps;
}

std::int64_t ZeroOptimizer::skipped_steps() const noexcept {
  return impl_->counts.skipped;
}

void ZeroOptimizer::set_learning_rate(std::size_t group, double learning_rate) {
  impl_->adam.set_learning_rate(group, learning_rate);
}

double ZeroOptimizer::learning_rate(std::size_t group) const {
  return impl_->adam.learning_rate(group);
}

std::size_t ZeroOptimizer::num_groups() const noexcept {
  return impl_->layout.num_groups();
}

}  // namespace thinwire::deepspeed

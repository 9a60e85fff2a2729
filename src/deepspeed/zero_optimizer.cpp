// SPDX-License-Identifier: Apache-2.0
#include "thinwire/deepspeed/zero_optimizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/require.h"
#include "deepspeed/rounded_sum.h"
#include "deepspeed/zero_impl.h"
#include "optim/checks.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/error.h"
#include "thinwire/deepspeed/loss_scaler.h"

namespace thinwire::deepspeed {

using optim::StepInput;
using optim::StepReport;
using zero::ShardLayout;

namespace {

void require_array(std::string_view name, ConstView view, DType dtype,
                   std::size_t size) {
  if (view.dtype() != dtype || view.size() != size)
    reject(fmt::format("{} must be {} of {} elements, got {} of {}", name,
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
    : WholeValues(layout, window, /*takes_arrays=*/false),
      comm(c),
      layout(l),
      params(p),
      options(settings),
      scale(settings.dtype, scaler_of(settings)),
      pool(settings.exchange.num_threads),
      shards(ShardLayout::of(l, c.size(),
                             {.placement = zero::Placement::kContiguous,
                              .round_robin = settings.round_robin})),
      rank(static_cast<std::size_t>(c.rank())),
      fragments(shards.fragments(c.rank())),
      adam(shards.layout_of_shard(l, c.rank()), rule),
      masters(Buffer::of<float>(shards.shard_size(c.rank()))),
      averaged(masters.size(), options.dtype),
      sums(l.size(), sum_dtype()),
      places(l.parameters().size()),
      window(layout, {{0, l.size()}}, *this) {
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
  set_masters(initial.empty() ? ConstView(params) : initial);
}

ZeroOptimizer::~ZeroOptimizer() = default;

exchange::GradientWindow& ZeroOptimizer::gradients() noexcept {
  return impl_->window;
}

zero::WholeValues& ZeroOptimizer::whole_values() noexcept { return *impl_; }

// ---- steps

StepReport ZeroOptimizer::step(const StepInput& input) {
  Impl& in = *impl_;
  zero::require_step(input, in.window, in.params);
  require(input.loss_scale == 1, "loss_scale", "1 with deepspeed semantics",
          input.loss_scale);
  StepReport report;
  {
    optim::StepMeter meter(in.comm, report);
    if (!input.grads.empty()) in.window.collect_all(input.grads);
    meter.waiting([&] { in.finish(); });
    in.window.restart();
    in.take_step(report, meter);
  }
  return report;
}

StepReport ZeroOptimizer::step() {
  return step({.params = impl_->params, .grads = {}});
}

// ---- properties

const ZeroOptions& ZeroOptimizer::options() const noexcept {
  return impl_->options;
}

double ZeroOptimizer::loss_scale() const noexcept {
  return impl_->scale.value();
}

void ZeroOptimizer::set_loss_scale(double scale) { impl_->scale.set(scale); }

const ShardLayout& ZeroOptimizer::shards() const noexcept {
  return impl_->shards;
}

optim::ParameterGroups& ZeroOptimizer::groups() { return impl_->adam; }

optim::Progress ZeroOptimizer::progress() const {
  return {.steps = impl_->counts.steps, .skipped = impl_->counts.skipped};
}

void ZeroOptions::validate() const {
  require(stage == 1 || stage == 2, "stage", "1 or 2", stage);
  optim::require_model_dtype("dtype", dtype);
  require(accumulation_dtype == DType::kFloat32 || accumulation_dtype == dtype,
          "accumulation_dtype", fmt::format("float32 or {}", to_string(dtype)),
          to_string(accumulation_dtype));
  optim::require_model_dtype("communication_dtype",
                             communication_dtype.value_or(dtype));
  require_predivide(predivide);
  exchange.validate();
  if (dtype == DType::kFloat16)
    static_cast<void>(loss_scaler(zero_loss_scaler(loss_scale)));
}

std::string ZeroOptions::describe() const {
  return fmt::format(
      "deepspeed stage={} dtype={} communication_dtype={} "
      "accumulation_dtype={} "
      "average={} round_robin={} reduce_scatter={} prescale={} predivide={} "
      "{}\n{}",
      stage, to_string(dtype), to_string(communication_dtype.value_or(dtype)),
      to_string(accumulation_dtype), average, round_robin, reduce_scatter,
      prescale, predivide, loss_scale.describe(), exchange.describe());
}

}  // namespace thinwire::deepspeed

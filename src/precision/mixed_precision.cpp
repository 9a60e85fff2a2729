// SPDX-License-Identifier: Apache-2.0
#include "thinwire/precision/mixed_precision.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <utility>

#include "optim/saved_state.h"
#include "precision/loss_scale.h"
#include "precision/require_16_bit.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::precision {

using optim::StepInput;
using optim::StepReport;

namespace {

bool is_finite(ConstView values) {
  return std::isfinite(kernels::sum_of_squares(values));
}

// Returns the index of the first parameter with a non-finite gradient, or -1.
std::int64_t first_nonfinite(const ParameterLayout& layout, ConstView grads) {
  const auto parameters = layout.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (!is_finite(grads.subview(parameters[i].offset, parameters[i].size)))
      return static_cast<std::int64_t>(i);
  return -1;
}

}  // namespace

void MixedPrecisionOptions::validate() const {
  require(is_16_bit(dtype), "dtype", "float16 or bfloat16", to_string(dtype));
  require(master_dtype == DType::kFloat32 || master_dtype == dtype,
          "master_dtype", fmt::format("float32 or {}", to_string(dtype)),
          to_string(master_dtype));
  if (dtype == DType::kFloat16) loss_scale.validate();
}

struct MixedPrecision::Impl final : optim::EarlyGradients, optim::LocalSteps {
  Impl(comm::Communicator& c, const ParameterLayout& l,
       std::unique_ptr<optim::Optimizer> o, ConstView initial,
       const MixedPrecisionOptions& settings);

  StepReport step(const StepInput& in);
  [[nodiscard]] bool has_masters() const noexcept {
    return options.master_dtype == DType::kFloat32;
  }
  void write_params(View params) const {
    require_params(params, options.dtype, layout.size());
    if (has_masters()) kernels::convert(masters.view(), params);
  }

  // ---- the optimizer's interfaces, adapted
  // At the smallest scale, gradients must not change until all ranks know which
  // of them overflowed.
  [[nodiscard]] bool reduces() const noexcept override {
    return !scale.is_last_chance() && optimizer->early()->reduces();
  }
  void reduce(View grads, Range range) override {
    require_reduces();
    optimizer->early()->reduce(grads, range);
  }
  [[nodiscard]] std::vector<Range> buckets() const override {
    return optimizer->early()->buckets();
  }
  [[nodiscard]] bool measures() const noexcept override {
    return optimizer->early()->measures();
  }
  void measure(ConstView grads, Range range) override {
    optimizer->early()->measure(grads, range);
  }
  void finish() override { optimizer->early()->finish(); }
  void forget() noexcept override { optimizer->early()->forget(); }

  // Local steps change the masters, which are then rounded to the parameters.
  [[nodiscard]] std::int64_t steps_behind() const noexcept override {
    return optim::steps_behind(*optimizer);
  }
  void synchronize(View params) override {
    require_params(params, options.dtype, layout.size());
    optim::synchronize(*optimizer, masters.view());
    write_params(params);
  }
  [[nodiscard]] ConstView exchanged_params(ConstView params) const override {
    if (steps_behind() == 0) return params;
    return optim::exchanged_params(*optimizer, masters.view());
  }
  void repeat(View params) override {
    if (optim::LocalSteps* const local = optimizer->local_steps())
      local->repeat(masters.view());
    if (!params.empty()) write_params(params);
  }

  comm::Communicator& comm;
  ParameterLayout layout;
  std::unique_ptr<optim::Optimizer> optimizer;
  MixedPrecisionOptions options;
  LossScale scale;
  Buffer masters;
};

MixedPrecision::Impl::Impl(comm::Communicator& c, const ParameterLayout& l,
                           std::unique_ptr<optim::Optimizer> o,
                           ConstView initial,
                           const MixedPrecisionOptions& settings)
    : comm(c),
      layout(l),
      optimizer(std::move(o)),
      options(settings),
      scale(settings.dtype, settings.loss_scale) {
  require_wrapped(optimizer.get(), initial, layout.size());
  require(has_masters() || !initial.is_joined(), "master_dtype",
          "float32 with parameters of two dtypes",
          to_string(options.master_dtype));
  if (!has_masters()) return;
  masters = Buffer::of<float>(layout.size());
  kernels::convert(initial, masters.view());
}

// If a step ends the run, each rank still has its own gradients, unless all
// were finite and only their sum is not.
StepReport MixedPrecision::Impl::step(const StepInput& in) {
  StepInput inner = in;
  inner.loss_scale = scale.value() * in.loss_scale;
  inner.skip_if_any_rank_nonfinite = scale.is_used();
  inner.finds_nonfinite = scale.is_last_chance();
  if (has_masters()) {
    inner.params = masters.view();
    inner.low_precision = in.params;
  }
  const StepReport report = optimizer->step(inner);
  if (!report.applied && scale.is_last_chance())
    scale.stop(comm, layout,
               {.first = first_nonfinite(layout, in.grads),
                .rank = report.nonfinite_rank,
                .last_good_step = optimizer->progress().steps});
  scale.update(!report.applied);
  return report;
}

MixedPrecision::MixedPrecision(comm::Communicator& comm,
                               const ParameterLayout& layout,
                               std::unique_ptr<optim::Optimizer> optimizer,
                               ConstView initial,
                               const MixedPrecisionOptions& options) {
  options.validate();
  impl_ = std::make_unique<Impl>(comm, layout, std::move(optimizer), initial,
                                 options);
}

MixedPrecision::~MixedPrecision() = default;

double MixedPrecision::loss_scale() const noexcept {
  return impl_->scale.value();
}

void MixedPrecision::set_loss_scale(double scale) { impl_->scale.set(scale); }

ConstView MixedPrecision::masters() const noexcept {
  return impl_->masters.view();
}

void MixedPrecision::set_masters(ConstView params) {
  require(params.size() == impl_->layout.size(), "params",
          fmt::format("{} elements", impl_->layout.size()), params.size());
  if (impl_->has_masters()) kernels::convert(params, impl_->masters.view());
  impl_->optimizer->set_masters(params);
}

void MixedPrecision::write_params(View params) const {
  impl_->write_params(params);
}

bool MixedPrecision::takes_gradients(DType dtype) const noexcept {
  return dtype == DType::kFloat32 || is_16_bit(dtype);
}

StepReport MixedPrecision::step(const StepInput& input) {
  // Joined views must be split where the caller's parameters are; the wrapped
  // optimizer checks the place.
  require_input(input, impl_->options.dtype, impl_->layout.size(),
                input.params.first_size());
  return impl_->step(input);
}

optim::ParameterGroups& MixedPrecision::groups() {
  return impl_->optimizer->groups();
}

optim::Progress MixedPrecision::progress() const {
  return impl_->optimizer->progress();
}

double MixedPrecision::residual_ratio() const {
  return impl_->optimizer->residual_ratio();
}

optim::EarlyGradients* MixedPrecision::early() {
  return impl_->optimizer->early() == nullptr ? nullptr : impl_.get();
}

optim::LocalSteps* MixedPrecision::local_steps() {
  return impl_->has_masters() ? impl_.get() : impl_->optimizer->local_steps();
}

optim::FreezeStage* MixedPrecision::freeze() {
  return impl_->optimizer->freeze();
}

// ---- saved state

optim::State MixedPrecision::state() const {
  optim::State state = impl_->optimizer->state();
  if (impl_->has_masters())
    state
        .add_elements("masters", optim::Sharing::kSame,
                      {{0, impl_->layout.size()}},
                      optim::exchanged_params(*impl_->optimizer, masters()))
        .is_parameters = true;
  if (impl_->scale.is_used()) impl_->scale.save(state.common);
  return state;
}

optim::Optimizer::Adoption MixedPrecision::adopt(StateDict state) {
  LossScale scale(impl_->options.dtype, impl_->options.loss_scale);
  scale.load_if_there(state);
  const auto masters = std::make_shared<Buffer>();
  if (impl_->has_masters())
    *masters = optim::take_floats(state, "masters", DType::kFloat32,
                                  impl_->layout.size());
  return [this, scale, masters,
          of_optimizer = impl_->optimizer->adopt(std::move(state))] {
    optim::Notes notes = of_optimizer();
    impl_->scale = scale;
    if (impl_->has_masters()) impl_->masters = std::move(*masters);
    return notes;
  };
}

void MixedPrecision::require_owner(const StateDict& state) const {
  impl_->optimizer->require_owner(state);
  impl_->scale.require_in(state);
}

}  // namespace thinwire::precision

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

// The number of the first parameter whose gradient is not finite; -1.
std::int64_t first_nonfinite(const ParameterLayout& layout, ConstView grads) {
  const auto parameters = layout.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (!is_finite(grads.subview(parameters[i].offset, parameters[i].size)))
      return static_cast<std::int64_t>(i);
  return -1;
}

}  // namespace

void MixedPrecisionOptions::validate() const {
  require(optim::is_16_bit(dtype), "dtype", "float16 or bfloat16",
          to_string(dtype));
  require(master_dtype == DType::kFloat32 || master_dtype == dtype,
          "master_dtype", fmt::format("float32 or {}", to_string(dtype)),
          to_string(master_dtype));
  if (dtype == DType::kFloat16) loss_scale.validate();
}

struct MixedPrecision::Impl {
  Impl(comm::Communicator& c, const ParameterLayout& l,
       std::unique_ptr<optim::Optimizer> o, ConstView initial,
       const MixedPrecisionOptions& settings);

  StepReport step(const StepInput& in);
  [[nodiscard]] bool has_masters() const noexcept {
    return options.master_dtype == DType::kFloat32;
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

// Gradients are still what each rank had when the run ends, unless they are
// finite everywhere and only their sum is not.
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
                .last_good_step = optimizer->steps()});
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

void MixedPrecision::read_masters(ConstView params) {
  require(params.size() == impl_->layout.size(), "params",
          fmt::format("{} elements", impl_->layout.size()), params.size());
  if (impl_->has_masters()) kernels::convert(params, impl_->masters.view());
  impl_->optimizer->read_masters(params);
}

void MixedPrecision::write_params(View params) const {
  require_params(params, impl_->options.dtype, impl_->layout.size());
  if (impl_->has_masters()) kernels::convert(impl_->masters.view(), params);
}

bool MixedPrecision::takes_gradients(DType dtype) const noexcept {
  return dtype == DType::kFloat32 || optim::is_16_bit(dtype);
}

StepReport MixedPrecision::step(const StepInput& input) {
  // What is wrapped knows where they may be joined.
  require_input(input, impl_->options.dtype, impl_->layout.size(),
                input.params.first_size());
  return impl_->step(input);
}

void MixedPrecision::reduce_early(View grads, Range range) {
  if (!reduces_early())
    throw Error(ErrorCode::kFailedPrecondition,
                "reduce_early: the next step averages nothing before all "
                "gradients are there");
  impl_->optimizer->reduce_early(grads, range);
}

void MixedPrecision::measure_early(ConstView grads, Range range) {
  impl_->optimizer->measure_early(grads, range);
}

bool MixedPrecision::measures_early() const noexcept {
  return impl_->optimizer->measures_early();
}

void MixedPrecision::finish_early() { impl_->optimizer->finish_early(); }

void MixedPrecision::set_freeze_gate(optim::FreezeGate gate) {
  impl_->optimizer->set_freeze_gate(std::move(gate));
}

double MixedPrecision::residual_ratio() const {
  return impl_->optimizer->residual_ratio();
}

std::vector<double> MixedPrecision::lamb_coeffs() const {
  return impl_->optimizer->lamb_coeffs();
}

void MixedPrecision::forget_early() noexcept {
  impl_->optimizer->forget_early();
}

// At the minimum of the scale gradients must stay as they are until all ranks
// know which of them overflowed.
bool MixedPrecision::reduces_early() const noexcept {
  return !impl_->scale.is_last_chance() && impl_->optimizer->reduces_early();
}

std::vector<Range> MixedPrecision::buckets() const {
  return impl_->optimizer->buckets();
}

void MixedPrecision::synchronize(View params) {
  require_params(params, impl_->options.dtype, impl_->layout.size());
  if (!impl_->has_masters()) return impl_->optimizer->synchronize(params);
  impl_->optimizer->synchronize(impl_->masters.view());
  write_params(params);
}

std::int64_t MixedPrecision::steps() const noexcept {
  return impl_->optimizer->steps();
}

std::int64_t MixedPrecision::skipped_steps() const noexcept {
  return impl_->optimizer->skipped_steps();
}

optim::Phase MixedPrecision::phase() const noexcept {
  return impl_->optimizer->phase();
}

void MixedPrecision::set_learning_rate(std::size_t group,
                                       double learning_rate) {
  impl_->optimizer->set_learning_rate(group, learning_rate);
}

double MixedPrecision::learning_rate(std::size_t group) const {
  return impl_->optimizer->learning_rate(group);
}

void MixedPrecision::set_weight_decay(std::size_t group, double weight_decay) {
  impl_->optimizer->set_weight_decay(group, weight_decay);
}

double MixedPrecision::weight_decay(std::size_t group) const {
  return impl_->optimizer->weight_decay(group);
}

std::optional<std::int64_t> MixedPrecision::freeze_step() const {
  return impl_->optimizer->freeze_step();
}

void MixedPrecision::set_exp_avg_mask(std::size_t group,
                                      std::span<const float> mask) {
  impl_->optimizer->set_exp_avg_mask(group, mask);
}

std::vector<std::string> MixedPrecision::take_notes() {
  return impl_->optimizer->take_notes();
}

std::size_t MixedPrecision::num_groups() const noexcept {
  return impl_->optimizer->num_groups();
}

// ---- saved state

optim::State MixedPrecision::state() const {
  optim::State state = impl_->optimizer->state();
  if (impl_->has_masters())
    state
        .add_elements("masters", optim::Sharing::kSame,
                      {{0, impl_->layout.size()}},
                      impl_->optimizer->exchanged_params(masters()))
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
    of_optimizer();
    impl_->scale = scale;
    if (impl_->has_masters()) impl_->masters = std::move(*masters);
  };
}

void MixedPrecision::repeat_local_steps(View params) {
  require_params(params, impl_->options.dtype, impl_->layout.size());
  if (!impl_->has_masters()) return;
  impl_->optimizer->repeat_local_steps(impl_->masters.view());
  write_params(params);
}

ConstView MixedPrecision::exchanged_params(ConstView params) const {
  if (steps_behind() == 0) return params;
  return impl_->optimizer->exchanged_params(masters());
}

std::int64_t MixedPrecision::steps_behind() const noexcept {
  return impl_->optimizer->steps_behind();
}

void MixedPrecision::load_state_dict(const StateDict& state) {
  Optimizer::load_state_dict(state);
  if (impl_->has_masters())
    impl_->optimizer->repeat_local_steps(impl_->masters.view());
}

StateDict MixedPrecision::owner() const { return impl_->optimizer->owner(); }

void MixedPrecision::require_owner(const StateDict& state) const {
  impl_->optimizer->require_owner(state);
  impl_->scale.require_in(state);
}

}  // namespace thinwire::precision

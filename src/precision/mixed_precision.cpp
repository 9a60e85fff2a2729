// SPDX-License-Identifier: Apache-2.0
#include "thinwire/precision/mixed_precision.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>
#include <vector>

#include "optim/checks.h"
#include "precision/mixed_precision_impl.h"
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
  require(std::isfinite(max_grad_norm) && max_grad_norm >= 0, "max_grad_norm",
          "finite and >= 0", max_grad_norm);
  if (dtype == DType::kFloat16) loss_scale.validate();
  if (semantics != optim::Semantics::kDeepSpeed) {
    require(max_grad_norm == 0, "max_grad_norm",
            "0 with corrected semantics, where the optimizer clips",
            max_grad_norm);
    return;
  }
  require(dtype == DType::kFloat16, "dtype", "float16 with deepspeed semantics",
          to_string(dtype));
  require(master_dtype == DType::kFloat32, "master_dtype",
          "float32 with deepspeed semantics", to_string(master_dtype));
}

ParameterLayout wrapped_layout(const ParameterLayout& layout,
                               const MixedPrecisionOptions& options) {
  if (options.semantics != optim::Semantics::kDeepSpeed ||
      options.wrapper == Wrapper::kUnfused)
    return layout;
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

MixedPrecision::Impl::Impl(comm::Communicator& c, const ParameterLayout& l,
                           std::unique_ptr<optim::Optimizer> o,
                           ConstView initial,
                           const MixedPrecisionOptions& settings)
    : comm(c),
      layout(l),
      optimizer(std::move(o)),
      options(settings),
      scaler(settings.dtype == DType::kFloat16
                 ? settings.loss_scale
                 : LossScalerOptions{.initial_scale = 1, .dynamic = false}) {
  if (optimizer == nullptr)
    throw Error(ErrorCode::kInvalidArgument,
                "optimizer must be one to wrap, got null");
  require(initial.size() == layout.size(), "initial",
          fmt::format("{} elements", layout.size()), initial.size());
  if (!has_masters()) return;
  masters = Buffer::of<float>(layout.size());
  kernels::convert(initial, masters.view());
}

void MixedPrecision::Impl::require_params(View params) const {
  require(params.dtype() == options.dtype, "params", to_string(options.dtype),
          to_string(params.dtype()));
  require(params.size() == layout.size(), "params",
          fmt::format("{} elements", layout.size()), params.size());
}

void MixedPrecision::Impl::require_input(const StepInput& in) const {
  require_params(in.params);
  optim::require_step_input(in, layout.size());
  require(in.low_precision.empty(), "low_precision",
          "empty: params are of 16 bits themselves", in.low_precision.size());
}

StepReport MixedPrecision::Impl::step(const StepInput& in) {
  StepInput inner = in;
  inner.loss_scale = loss_scale() * in.loss_scale;
  inner.skips_together = scales();
  inner.finds_nonfinite = is_last_chance();
  if (has_masters()) {
    inner.params = masters.view();
    inner.low_precision = in.params;
  }
  StepReport report = optimizer->step(inner);
  if (!scales()) return report;
  if (!report.applied && is_last_chance())
    stop(in.grads, report.nonfinite_rank);
  scaler.update(!report.applied);
  return report;
}

// Collective. Gradients are still what each rank had, unless they are finite
// everywhere and only their sum is not.
void MixedPrecision::Impl::stop(ConstView grads, int rank) const {
  const std::int64_t own = first_nonfinite(layout, grads);
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::span(&own, 1), all);
  std::string where = "in the sum over all ranks";
  if (rank >= 0 && all[static_cast<std::size_t>(rank)] >= 0) {
    const auto index =
        static_cast<std::size_t>(all[static_cast<std::size_t>(rank)]);
    where = fmt::format("first in '{}' on rank {}",
                        layout.parameters()[index].name, rank);
  }
  throw Error(
      ErrorCode::kNonFinite,
      fmt::format("the loss scale is at its minimum of {} and "
                  "gradients are still not finite, {}; the last good "
                  "step was {}",
                  scaler.options().min_scale, where, optimizer->steps()));
}

MixedPrecision::MixedPrecision(comm::Communicator& comm,
                               const ParameterLayout& layout,
                               std::unique_ptr<optim::Optimizer> optimizer,
                               ConstView initial,
                               const MixedPrecisionOptions& options) {
  options.validate();
  impl_ = options.semantics == optim::Semantics::kDeepSpeed
              ? make_reference_wrapper(comm, layout, std::move(optimizer),
                                       initial, options)
              : std::make_unique<Impl>(comm, layout, std::move(optimizer),
                                       initial, options);
}

MixedPrecision::~MixedPrecision() = default;

double MixedPrecision::loss_scale() const noexcept {
  return impl_->loss_scale();
}

ConstView MixedPrecision::masters() const noexcept {
  return impl_->masters.view();
}

void MixedPrecision::set_masters(ConstView params) {
  require(params.size() == impl_->layout.size(), "params",
          fmt::format("{} elements", impl_->layout.size()), params.size());
  if (impl_->has_masters()) kernels::convert(params, impl_->masters.view());
}

void MixedPrecision::write_params(View params) const {
  impl_->require_params(params);
  if (impl_->has_masters()) kernels::convert(impl_->masters.view(), params);
}

StepReport MixedPrecision::step(const StepInput& input) {
  impl_->require_input(input);
  return impl_->step(input);
}

void MixedPrecision::reduce_early(View grads, Range range) {
  if (!reduces_early())
    throw Error(ErrorCode::kFailedPrecondition,
                "reduce_early: the next step averages nothing before all "
                "gradients are there");
  impl_->optimizer->reduce_early(grads, range);
}

// At the minimum of the scale gradients must stay as they are until all ranks
// know which of them overflowed.
bool MixedPrecision::reduces_early() const noexcept {
  return impl_->options.semantics == optim::Semantics::kCorrected &&
         !impl_->is_last_chance() && impl_->optimizer->reduces_early();
}

void MixedPrecision::synchronize(View params) {
  impl_->require_params(params);
  if (!impl_->has_masters()) return impl_->optimizer->synchronize(params);
  impl_->optimizer->synchronize(impl_->masters.view());
  write_params(params);
}

std::int64_t MixedPrecision::steps() const noexcept {
  return impl_->optimizer->steps();
}

std::int64_t MixedPrecision::skipped_steps() const noexcept {
  return impl_->skipped + impl_->optimizer->skipped_steps();
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

std::size_t MixedPrecision::num_groups() const noexcept {
  return impl_->optimizer->num_groups();
}

void MixedPrecision::set_observer(compress::WireObserver* observer) noexcept {
  impl_->observer = observer;
}

StateDict MixedPrecision::state_dict() const {
  StateDict state = impl_->optimizer->state_dict();
  state.put_integer("skipped_steps", skipped_steps());
  if (impl_->has_masters()) state.put("masters", impl_->masters.view());
  impl_->scaler.save(state);
  return state;
}

void MixedPrecision::load_state_dict(const StateDict& state) {
  LossScaler scaler = impl_->scaler;
  scaler.load(state);
  ConstView masters;
  if (impl_->has_masters())
    masters = state.array("masters", DType::kFloat32, impl_->layout.size());
  impl_->optimizer->load_state_dict(state);  // the last that can fail
  impl_->scaler = scaler;
  impl_->skipped = 0;  // the optimizer has taken over all of them
  if (impl_->has_masters()) kernels::convert(masters, impl_->masters.view());
}

}  // namespace thinwire::precision

// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's FP16 wrappers, operation by operation, with what is wrong in
// them: gradients are unscaled and clipped by the scale of the next step, in
// compressed steps every rank clips by its own norm, and the unfused wrapper
// reports a norm that is still scaled.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/require.h"
#include "precision/mixed_precision_impl.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::precision {

using optim::StepInput;
using optim::StepReport;

namespace {

float norm(std::span<const float> values) {
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x) * x;
  return static_cast<float>(std::sqrt(sum));
}

struct ReferenceWrapper final : MixedPrecision::Impl {
  ReferenceWrapper(comm::Communicator& c, const ParameterLayout& l,
                   std::unique_ptr<optim::Optimizer> o, ConstView initial,
                   const MixedPrecisionOptions& settings)
      : Impl(c, l, std::move(o), initial, settings),
        wrapped(wrapped_layout(l, settings)),
        grads(l.size()) {
    // "Initializes" the states: one step with gradients of zero.
    (void)optimizer->step(
        {.params = masters.view(), .grads = grads, .averaged = true});
  }

  ParameterLayout wrapped;
  std::vector<float> grads;

  StepReport step(const StepInput& in) override {
    require(in.loss_scale == 1, "loss_scale", "1 with deepspeed semantics",
            in.loss_scale);
    const bool averaged = optimizer->phase() == optim::Phase::kExact;
    const auto halves = in.grads.as<Half>();
    if (averaged && comm.size() > 1) average(halves);
    kernels::convert(in.grads, std::span(grads));
    const bool overflow = overflows(averaged);
    scaler.update(overflow);
    if (overflow) {
      ++skipped;
      return {.applied = false,
              .phase = optimizer->phase(),
              .loss_scale = scaler.scale()};
    }

    const double total = scaled_norm();
    const double reported =
        options.wrapper == Wrapper::kFused ? total / scaler.scale() : total;
    const auto factor = static_cast<float>(1 / combined_scale(total));
    for (float& g : grads) g *= factor;
    StepReport report = optimizer->step(
        {.params = masters.view(), .grads = grads, .averaged = averaged});
    kernels::convert(masters.view(), in.params);
    report.grad_norm = reported;
    report.loss_scale = scaler.scale();
    return report;
  }

  // The engine's all-reduce: every addition and the division are rounded.
  void average(std::span<Half> values) const {
    std::vector<Half> all(values.size() *
                          static_cast<std::size_t>(comm.size()));
    comm.all_gather(values, all);
    const auto mean = static_cast<float>(1.0 / comm.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      Half sum = all[i];
      for (std::size_t at = i + values.size(); at < all.size();
           at += values.size())
        sum = to_half(to_float(sum) + to_float(all[at]));
      values[i] = to_half(to_float(sum) * mean);
    }
  }

  [[nodiscard]] bool overflows(bool averaged) const {
    std::uint8_t flag = std::all_of(grads.begin(), grads.end(),
                                    [](float g) { return std::isfinite(g); })
                            ? 0
                            : 1;
    if (averaged) return flag != 0;
    if (observer != nullptr) observer->overflow_flag(flag);
    comm.all_reduce(std::span(&flag, 1), comm::ReduceOp::kMax);
    return flag != 0;
  }

  [[nodiscard]] std::span<const float> of(const Parameter& p) const {
    return std::span(grads).subspan(p.offset, p.size);
  }

  // The fused wrapper adds squares as Python numbers, whose pow() differs from
  // a product or a root in the last bit; the unfused one adds them as floats.
  [[nodiscard]] double scaled_norm() const {
    if (options.wrapper == Wrapper::kFused) {
      double sum = 0;
      for (const Parameter& p : wrapped.parameters())
        sum += std::pow(static_cast<double>(norm(of(p))), 2.0);
      return std::sqrt(std::pow(
          std::pow(static_cast<double>(static_cast<float>(sum)), 0.5), 2.0));
    }
    std::vector<float> sums(wrapped.num_groups());
    for (const Parameter& p : wrapped.parameters())
      sums[p.group] += norm(of(p)) * norm(of(p));
    double total = 0;
    for (const float sum : sums)
      total += std::pow(std::pow(static_cast<double>(sum), 0.5), 2.0);
    return std::sqrt(total);
  }

  [[nodiscard]] double combined_scale(double total) const {
    if (options.max_grad_norm <= 0) return scaler.scale();
    const double clip = (total / scaler.scale() + 1e-6) / options.max_grad_norm;
    return clip > 1 ? clip * scaler.scale() : scaler.scale();
  }
};

}  // namespace

std::unique_ptr<MixedPrecision::Impl> make_reference_wrapper(
    comm::Communicator& comm, const ParameterLayout& layout,
    std::unique_ptr<optim::Optimizer> optimizer, ConstView initial,
    const MixedPrecisionOptions& options) {
  MixedPrecisionOptions with_scaler = options;
  with_scaler.loss_scale = wrapper_loss_scaler(options.loss_scale);
  return std::make_unique<ReferenceWrapper>(comm, layout, std::move(optimizer),
                                            initial, with_scaler);
}

}  // namespace thinwire::precision

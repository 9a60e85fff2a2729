// SPDX-License-Identifier: Apache-2.0
// arXiv:2102.02888, Algorithm 1; docs/algorithms/onebit-adam.md has the same
// lines. The compressed momentum is in low_bit/momentum.cpp.
#include "thinwire/optim/onebit_adam.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "core/require.h"
#include "optim/low_bit/exact_groups.h"
#include "optim/low_bit/freeze.h"
#include "optim/low_bit/impl.h"
#include "optim/low_bit/variance_refresh.h"

namespace thinwire::optim {

namespace {

LowBitSettings settings_of(const OnebitAdamOptions& options) {
  return low_bit_settings(
      "onebit_adam",
      fmt::format("{} variance_refresh={}", describe_freeze(options),
                  options.variance_refresh),
      options);
}

struct OnebitAdamImpl final : LowBitOptimizer::Impl {
  OnebitAdamImpl(comm::Communicator& comm, const ParameterLayout& layout,
                 const OnebitAdamOptions& options)
      : Impl(comm, layout, settings_of(options)),
        freeze(model, freeze_options(options)),
        exact_groups(model),
        refresh(model, momentum, denominator, options.variance_refresh) {}

  Freeze freeze;
  ExactGroups exact_groups;
  VarianceRefresh refresh;

  void take_step(const StepInput& in, StepMeter& step) override;
  [[nodiscard]] Phase phase() const override { return freeze.phase(); }
  void add_own(State& state) const override;
  [[nodiscard]] Adoption adopt_own(StateDict& state) override;
  [[nodiscard]] std::string_view exact_rule() const override { return "adam"; }
  void begin_in(StateDict& state) const override { Freeze::begin_in(state); }

  void warm_up(const StepInput& in, StepMeter& step);
  void compressed_step(const StepInput& in, StepMeter& step);
  [[nodiscard]] bool keeps_variance() const {
    return refresh.is_on() || !model.layout.exact.empty();
  }
};

void OnebitAdamImpl::take_step(const StepInput& in, StepMeter& step) {
  if (freeze.is_frozen())
    compressed_step(in, step);
  else
    warm_up(in, step);
  if (step.report().applied) verify(in.params, freeze.describe());
}

// Warm-up stage: Adam on the averaged gradient.
void OnebitAdamImpl::warm_up(const StepInput& in, StepMeter& step) {
  // g = clip * mean_i g_i; nothing: not finite, skipped on all ranks.
  const auto scale = gradients.average(in, step);
  if (!scale) return;
  // m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
  // p = p - lr (m^ / (sqrt(v^) + eps) + wd p)
  adam().apply(++steps, update_arrays(in, *scale), model.pool);
  // d = max(sqrt(v / (1 - beta2^T)) + eps, floor) from the last such step on.
  if (freeze.ends_at(steps)) {
    freeze.freeze(steps, keeps_variance(), denominator);
    refresh.begin(steps);
  }
}

// Compression stage: v stays what it is, m_i travels as signs.
void OnebitAdamImpl::compressed_step(const StepInput& in, StepMeter& step) {
  // g_i = clip * g_i, the norm of their mean being estimated.
  const auto scale =
      gradients.clip_by_estimate(in, momentum.has_late(in.grads), step);
  if (!scale) return;
  const Coefficients c = model.coefficients(++steps, *scale);
  refresh.admit(prepare_gradients(in, *scale, step));
  exact_groups.begin(in.grads);
  // m_i = beta1 m + (1 - beta1) g_i
  // m = server(mean_i worker(m_i)), each with error feedback, in 1 bit
  // p = p - lr (m / (1 - beta1^t) / d + wd p)
  if (refresh.is_due(steps - freeze.at()))
    refresh.run(in, c, step);  // g_i travels instead, in 4 bits
  else
    momentum.all_reduce(in, c, denominator.values, step);
  exact_groups.finish(steps, in, *scale, step);
}

void OnebitAdamImpl::add_own(State& state) const {
  freeze.add_to(state, denominator);
  refresh.add_to(state);
}

Adoption OnebitAdamImpl::adopt_own(StateDict& state) {
  auto saved = std::make_shared<Freeze::Saved>(freeze.read(state));
  if (saved->frozen_at > 0 && keeps_variance())
    require_variance(state, model.size());
  auto first =
      std::make_shared<VarianceRefresh::FirstDenominators>(refresh.read(state));
  return [=, this] {
    freeze.restore(std::move(*saved), denominator);
    refresh.restore(std::move(*first));
  };
}

}  // namespace

void OnebitAdamOptions::validate(const ParameterLayout& layout) const {
  settings_of(*this).validate(layout);
  validate_freeze(*this);
  require(variance_refresh >= 0, "variance_refresh", ">= 0", variance_refresh);
  if (amsgrad)
    throw Error(ErrorCode::kInvalidArgument,
                "1-bit Adam does not support AMSGrad: amsgrad must be false, "
                "got true");
}

OnebitAdam::OnebitAdam(comm::Communicator& comm, const ParameterLayout& layout,
                       const OnebitAdamOptions& options)
    : LowBitOptimizer([&] {
        options.validate(layout);
        return std::make_unique<OnebitAdamImpl>(comm, layout, options);
      }()) {}

OnebitAdam::~OnebitAdam() = default;

std::int64_t OnebitAdam::frozen_at() const noexcept {
  return static_cast<const OnebitAdamImpl&>(*impl_).freeze.at();
}

}  // namespace thinwire::optim

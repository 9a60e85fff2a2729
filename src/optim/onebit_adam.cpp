// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/onebit_adam.h"

#include <utility>

#include "optim/low_bit_options.h"
#include "optim/require.h"
#include "optim/two_stage.h"

namespace thinwire::optim {

namespace {

LowBitSettings settings_of(const OnebitAdamOptions& options) {
  return low_bit_settings("onebit_adam", describe_freeze(options), options);
}

struct OnebitAdamImpl final : TwoStage {
  OnebitAdamImpl(comm::Communicator& c, const ParameterLayout& layout,
                 const OnebitAdamOptions& options)
      : TwoStage(c, layout, settings_of(options), freeze_options(options)) {}

  void exact_update(View params, ConstView grads, float grad_scale) override {
    apply_exactly(parts.all, params, grads, grad_scale);
  }

  void apply_exactly(std::span<const GroupRange> ranges, View params,
                     ConstView grads, float grad_scale) {
    for_group_ranges(pool, ranges, [&](Range range, std::size_t) {
      adam.apply_range(steps, range, params, grads, grad_scale);
    });
  }

  // Groups that stay exact travel while the others are compressed.
  void compressed_update(View params, View grads, double grad_scale,
                         StepMeter& meter, StepReport&) override {
    observe_exact(grads);
    const auto queued =
        queue_sums(comm, grads, parts.exact, settings.exchange.bucket_elements);
    momentum_step(params, grads, coefficients(grad_scale), meter);
    meter.waiting([&] {
      for (const comm::Work& work : queued) work.wait();
    });
    apply_exactly(parts.exact, params, grads,
                  static_cast<float>(grad_scale / comm.size()));
  }

  // Groups that stay exact lose nothing of it; they get a gradient averaged
  // twice, by the engine and by themselves.
  void initialization_step(View params, View grads, StepMeter& meter) override {
    sum(grads, parts.all, meter);
    const auto mean = static_cast<float>(1.0 / comm.size());
    for (float& g : grads.as<float>()) g *= mean;
    observe_exact(grads);
    sum(grads, parts.exact, meter);
    const auto p = params.as<float>();
    std::vector<float> unmoved(p.begin(), p.end());
    apply_exactly(parts.exact, unmoved, grads, mean);
    exchange_zeros();
  }

  void observe_exact(ConstView grads) {
    if (observer == nullptr) return;
    for (const GroupRange& r : parts.exact)
      observer->exact(r.range, grads.subview(r.range.offset, r.range.size));
  }
};

}  // namespace

void OnebitAdamOptions::validate(const ParameterLayout& layout) const {
  settings_of(*this).validate(layout);
  validate_freeze(*this);
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
  return static_cast<const OnebitAdamImpl&>(*impl_).frozen_at;
}

}  // namespace thinwire::optim

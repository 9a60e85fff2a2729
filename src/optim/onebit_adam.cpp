// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/onebit_adam.h"

#include <utility>

#include "optim/low_bit_options.h"
#include "optim/require.h"
#include "optim/two_stage.h"

namespace thinwire::optim {

using kernels::AdamCoefficients;
using kernels::Signs;

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
    const std::vector<AdamCoefficients> c = coefficients(grad_scale);
    if (compresses())
      exchange_momentum(params, grads, c, meter);
    else
      keep_momentum(params, grads, c);
    meter.waiting([&] {
      for (const comm::Work& work : queued) work.wait();
    });
    apply_exactly(parts.exact, params, grads,
                  static_cast<float>(grad_scale / comm.size()));
  }

  // Momentum formed, encoded, averaged, decoded and applied, block by block.
  void exchange_momentum(View params, ConstView grads,
                         std::span<const AdamCoefficients> c,
                         StepMeter& meter) {
    meter.compressed(the_exchange(), [&](auto& all) {
      all.run(
          [&](std::size_t b) {
            return momentum_input(b, grads, c[parts.block_group[b]]);
          },
          [&](std::size_t b, Signs mean) {
            apply_mean(b, mean, params, c[parts.block_group[b]]);
          });
    });
    if (policy.masks_before_compression) keep_momentum_as_signs();
  }

  void apply_mean(std::size_t b, Signs mean, View params,
                  const AdamCoefficients& c) {
    const Range& values = parts.blocks.blocks()[b].values;
    if (values.size == 0) return;
    kernels::FrozenUpdateArrays arrays = frozen_arrays(values, params);
    if (policy.masks_before_compression) {
      kernels::sign_update(mean, active_words(b), arrays, c);
      return;
    }
    float* m = adam.exp_avg().as<float>().data() + values.offset;
    kernels::sign_decode(mean, nullptr, m, values.size);
    parts.multiply_by_mask(adam.exp_avg().as<float>(), values);
    arrays.exp_avg = m;
    kernels::frozen_update(arrays, c);
  }

  // A group of one has nobody to compress for: momentum stays in full.
  void keep_momentum(View params, ConstView grads,
                     std::span<const AdamCoefficients> c) {
    update_momentum(grads, c);
    const float* m = adam.exp_avg().as<float>().data();
    for_group_ranges(
        pool, parts.compressed, [&](Range range, std::size_t group) {
          kernels::FrozenUpdateArrays arrays = frozen_arrays(range, params);
          arrays.exp_avg = m + range.offset;
          kernels::frozen_update(arrays, c[group]);
        });
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

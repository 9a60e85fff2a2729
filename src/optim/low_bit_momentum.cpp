// SPDX-License-Identifier: Apache-2.0
// A step over a denominator that does not move: momentum formed, encoded,
// averaged, decoded and applied, block by block.
#include <cstring>

#include "optim/low_bit.h"

namespace thinwire::optim {

using kernels::AdamCoefficients;
using kernels::Signs;

void LowBitOptimizer::Impl::momentum_step(const StepInput& in,
                                          std::span<const AdamCoefficients> c,
                                          StepMeter& meter) {
  if (compresses()) {
    exchange_momentum(in, c, meter);
  } else {
    // A group of one has nobody to compress for: momentum stays in full.
    step_by_own_momentum(in, c);
  }
}

void LowBitOptimizer::Impl::step_by_own_momentum(
    const StepInput& in, std::span<const AdamCoefficients> c) {
  update_momentum(in.grads, c);
  const float* m = adam.exp_avg().as<float>().data();
  for_group_ranges(pool, parts.compressed, [&](Range range, std::size_t group) {
    kernels::FrozenUpdateArrays arrays = frozen_arrays(range, in);
    arrays.exp_avg = m + range.offset;
    kernels::frozen_update(arrays, c[group]);
  });
}

void LowBitOptimizer::Impl::exchange_momentum(
    const StepInput& in, std::span<const AdamCoefficients> c,
    StepMeter& meter) {
  meter.compressed(the_exchange(), [&](auto& all) {
    all.run(
        [&](std::size_t b) {
          return momentum_input(b, in.grads, c[parts.block_group[b]]);
        },
        [&](std::size_t b, Signs mean) {
          apply_mean(b, mean, in, c[parts.block_group[b]]);
        });
  });
  if (policy.masks_before_compression) keep_momentum_as_signs();
}

void LowBitOptimizer::Impl::apply_mean(std::size_t b, Signs mean,
                                       const StepInput& in,
                                       const AdamCoefficients& c) {
  const Range& values = parts.blocks.blocks()[b].values;
  if (values.size == 0) return;
  kernels::FrozenUpdateArrays arrays = frozen_arrays(values, in);
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

kernels::SignInput LowBitOptimizer::Impl::momentum_input(
    std::size_t b, ConstView grads, const AdamCoefficients& c) const {
  const Range& values = parts.blocks.blocks()[b].values;
  kernels::SignInput input{.grads = grads.subview(values.offset, values.size),
                           .coefficients = &c};
  if (momentum_is_signs)
    input.mean = mean_momentum(b);
  else
    input.exp_avg = adam.exp_avg().as<float>().data() + values.offset;
  return input;
}

void LowBitOptimizer::Impl::update_momentum(
    ConstView grads, std::span<const AdamCoefficients> c) {
  const auto m = adam.exp_avg().as<float>();
  for_group_ranges(pool, parts.compressed, [&](Range range, std::size_t group) {
    kernels::momentum(m.data() + range.offset,
                      grads.subview(range.offset, range.size), c[group]);
    if (!policy.masks_before_compression) parts.multiply_by_mask(m, range);
    if (!participation.empty())
      for (std::size_t i = range.offset; i < range.end(); ++i)
        if (!takes_part(i)) m[i] = 0;
  });
}

void LowBitOptimizer::Impl::keep_momentum_as_signs() {
  momentum_is_signs = true;
  if (parts.exact.empty()) adam.exp_avg() = Buffer();
}

void LowBitOptimizer::Impl::keep_momentum_as_values() {
  if (!momentum_is_signs) return;
  adam.exp_avg() = momentum();
  momentum_is_signs = false;
}

kernels::Signs LowBitOptimizer::Impl::mean_momentum(std::size_t block) const {
  return exchange->mean(block);
}

Buffer LowBitOptimizer::Impl::momentum() const {
  Buffer copy = Buffer::of<float>(adam.layout().size());
  if (!adam.exp_avg().empty())
    std::memcpy(copy.data(), adam.exp_avg().data(), copy.bytes());
  if (!momentum_is_signs) return copy;
  float* const m = copy.as<float>().data();
  for (std::size_t b = 0; b < parts.blocks.blocks().size(); ++b) {
    const Range& values = parts.blocks.blocks()[b].values;
    kernels::sign_decode(mean_momentum(b), active_words(b), m + values.offset,
                         values.size);
  }
  return copy;
}

kernels::FrozenUpdateArrays LowBitOptimizer::Impl::frozen_arrays(
    Range range, const StepInput& in) {
  return {.params = in.params.as<float>().data() + range.offset,
          .denominator = denominator.as<float>().data() + range.offset,
          .low_precision = part_of(in.low_precision, range),
          .size = range.size};
}

}  // namespace thinwire::optim

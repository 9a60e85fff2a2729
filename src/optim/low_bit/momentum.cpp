// SPDX-License-Identifier: Apache-2.0
// One compressed step of the momentum: formed, encoded, averaged, decoded and
// applied, block by block. The arithmetic is kernels/sign_compress.h's, the
// exchange with its error feedback compress/compressed_all_reduce.h's.
#include "optim/low_bit/momentum.h"

#include <cstring>
#include <utility>

#include "core/set_to_zero.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

using kernels::AdamCoefficients;
using kernels::Signs;

void CompressedMomentum::all_reduce(const StepInput& in, const Coefficients& c,
                                    const Buffer& d, StepMeter& step) {
  if (!model_.compresses()) {
    update(in.grads, c);
    deliver_debt(model_.adam.exp_avg().as<float>());
    apply_values(in, c, d);
    return;
  }
  const auto own = [&](std::size_t b) {  // beta1 m + (1 - beta1) g_i
    return input(b, in.grads, c[model_.layout.block_group[b]]);
  };
  const auto apply = [&](std::size_t b, Signs m) {
    // p <- p - lr (m / (1 - beta1^t) / d + wd p)
    kernels::sign_update(m, active(b), arrays(model_.block(b), in, d),
                         c[model_.layout.block_group[b]]);
  };
  step.compressed(exchange(), [&](auto& all) { all.run(own, apply); });
  keep_as_signs();
}

void CompressedMomentum::apply_own(const StepInput& in, const Coefficients& c,
                                   const Buffer& d) {
  update(in.grads, c);
  apply_values(in, c, d);
}

void CompressedMomentum::apply_values(const StepInput& in,
                                      const Coefficients& c, const Buffer& d) {
  const float* const m = model_.adam.exp_avg().as<float>().data();
  for_group_ranges(model_.pool, model_.layout.compressed,
                   [&](Range range, std::size_t group) {
                     kernels::FrozenUpdateArrays at = arrays(range, in, d);
                     at.exp_avg = m + range.offset;
                     kernels::frozen_update(at, c[group]);
                   });
}

kernels::SignInput CompressedMomentum::input(std::size_t b, ConstView grads,
                                             const AdamCoefficients& c) const {
  const Range& at = model_.block(b);
  kernels::SignInput input{.grads = grads.subview(at.offset, at.size),
                           .coefficients = &c};
  if (is_signs_)
    input.mean = mean(b);
  else
    input.exp_avg = values(b).values;
  return input;
}

void CompressedMomentum::update(ConstView grads, const Coefficients& c) {
  const auto m = model_.adam.exp_avg().as<float>();
  for_group_ranges(model_.pool, model_.layout.compressed,
                   [&](Range range, std::size_t group) {
                     kernels::momentum(m.data() + range.offset,
                                       grads.subview(range.offset, range.size),
                                       c[group]);
                     if (participation_.empty()) return;
                     for (std::size_t i = range.offset; i < range.end(); ++i)
                       if (!takes_part(i)) m[i] = 0;
                   });
}

kernels::FrozenUpdateArrays CompressedMomentum::arrays(Range range,
                                                       const StepInput& in,
                                                       const Buffer& d) {
  return {.params = in.params.as<float>().data() + range.offset,
          .denominator = d.as<float>().data() + range.offset,
          .low_precision = part_of(in.low_precision, range),
          .size = range.size};
}

kernels::MomentumForm CompressedMomentum::values(std::size_t b) const {
  return {.values = std::as_const(model_.adam).exp_avg().as<float>().data() +
                    model_.block(b).offset};
}

kernels::MomentumForm CompressedMomentum::previous(std::size_t b) const {
  if (is_signs_) return {.signs = over_unit(exchange_->previous_mean(b), b)};
  return values(b);
}

void CompressedMomentum::keep_as_signs() {
  is_signs_ = true;
  if (model_.layout.exact.empty()) model_.adam.exp_avg() = Buffer();
}

void CompressedMomentum::keep_as_values() {
  if (!is_signs_) return;
  model_.adam.exp_avg() = copy();
  is_signs_ = false;
}

Buffer CompressedMomentum::copy() const {
  const Buffer& exp_avg = model_.adam.exp_avg();
  Buffer copy = Buffer::of<float>(model_.size());
  if (!exp_avg.empty()) std::memcpy(copy.data(), exp_avg.data(), copy.bytes());
  if (!is_signs_) return copy;
  float* const m = copy.as<float>().data();
  model_.for_blocks([&](std::size_t b) {
    const Range& at = model_.block(b);
    kernels::sign_decode(mean(b), active(b), m + at.offset, at.size);
  });
  return copy;
}

compress::CompressedAllReduce& CompressedMomentum::exchange() {
  if (!exchange_) exchange_ = make_exchange();
  return *exchange_;
}

std::unique_ptr<compress::CompressedAllReduce>
CompressedMomentum::make_exchange() const {
  auto made = std::make_unique<compress::CompressedAllReduce>(
      model_.comm, model_.pool, model_.layout.units,
      compress::CompressedAllReduceOptions{
          .blocks = model_.block_options,
          .scale = model_.settings.scale,
          .residual_dtype = model_.settings.residual_dtype,
          .checks_finite = options_.checks_finite,
          .keeps_previous = options_.keeps_previous});
  made->set_active(active_);
  made->set_observer(model_.observer);
  return made;
}

// ---- a group of one

void CompressedMomentum::deliver_debt(std::span<float> x) {
  if (!has_debt()) return;
  model_.for_blocks([&](std::size_t b) {
    const auto own = x.subspan(model_.block(b).offset, model_.block(b).size);
    const std::vector<float> owed = pay_debt(b);
    for (std::size_t i = 0; i < own.size(); ++i) own[i] += owed[i] / unit(b);
  });
  forget_debt();
}

std::vector<float> CompressedMomentum::pay_debt(std::size_t b) {
  const compress::Block& block = model_.layout.blocks.blocks()[b];
  const Range& at = block.residual;
  std::vector<float> worker(at.size);
  std::vector<float> owed(at.size);
  for (auto [side, floats] :
       {std::pair(&debt_.worker, &worker), std::pair(&debt_.server, &owed)}) {
    const View own = side->view().subview(at.offset, at.size);
    kernels::convert(own, std::span(*floats));
    set_to_zero(own);
  }
  for (std::size_t i = 0; i < at.size; ++i)
    owed[i] = takes_part(block.values.offset + i) ? owed[i] + worker[i] : 0;
  return owed;
}

void CompressedMomentum::follow_observer() {
  if (exchange_) exchange_->set_observer(model_.observer);
}

}  // namespace thinwire::optim

// SPDX-License-Identifier: Apache-2.0
// One compressed step of the momentum: formed, encoded, averaged, decoded and
// applied, block by block. The arithmetic is kernels/sign_compress.h's, the
// exchange with its error feedback exchange/compressed_all_reduce.h's.
#include "optim/low_bit/momentum/momentum.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/set_to_zero.h"

namespace thinwire::optim {

using kernels::AdamCoefficients;
using kernels::Signs;

void CompressedMomentum::all_reduce(const StepInput& in, const Coefficients& c,
                                    const Buffer& d, StepMeter& step) {
  average(in, c, update_with(in, c, d), step);
}

void CompressedMomentum::accept_early(const StepInput& in,
                                      const Coefficients& c, const Buffer& d,
                                      StepMeter& step) {
  const Apply apply = update_with(in, c, d);
  step.compressed(exchange(), [&](auto& all) {
    all.accept_early([&](std::size_t b, Signs m) { apply(b, {.signs = m}); },
                     teller(in.final_range));
  });
  keep_as_signs();
}

// p <- p - lr (m / (1 - beta1^t) / d + wd p)
CompressedMomentum::Apply CompressedMomentum::update_with(
    const StepInput& in, const Coefficients& c, const Buffer& d) const {
  return [this, &in, &c, &d](std::size_t b, const kernels::MomentumForm& m) {
    kernels::FrozenUpdateArrays at = arrays(model_.block(b), in, d);
    at.exp_avg = m.values;
    const AdamCoefficients& own = c[model_.layout.block_group[b]];
    if (m.values != nullptr)
      kernels::frozen_update(at, own);
    else
      kernels::sign_update(m.signs, active(b), at, own);
  };
}

void CompressedMomentum::average(const StepInput& in, const Coefficients& c,
                                 const Apply& apply, StepMeter& step) {
  if (!model_.compresses()) {
    update(in.grads, c);
    deliver_debt(model_.adam.exp_avg().as<float>());
    model_.for_blocks([&](std::size_t b) { apply(b, values(b)); },
                      in.final_range);
    return;
  }
  const auto own = [&](std::size_t b) {  // beta1 m + (1 - beta1) g_i
    return input(b, in.grads, c[model_.layout.block_group[b]]);
  };
  step.compressed(exchange(), [&](auto& all) {
    all.run(
        own, [&](std::size_t b, Signs m) { apply(b, {.signs = m}); },
        teller(in.final_range));
  });
  keep_as_signs();
}

exchange::CompressedAllReduce::Delivered CompressedMomentum::teller(
    const FinalRange& tell) const {
  if (!tell) return {};
  return [this, &tell](Range blocks) { model_.tell_blocks(blocks, tell); };
}

void CompressedMomentum::begin_as_signs(
    const exchange::CompressedAllReduce::Source& values) {
  exchange().share(values);
  keep_as_signs();
}

kernels::SignInput CompressedMomentum::input(std::size_t b, View grads,
                                             const AdamCoefficients& c) const {
  kernels::SignInput input{.grads = model_.gradient(b, grads),
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

exchange::CompressedAllReduce& CompressedMomentum::exchange() {
  if (!exchange_) exchange_ = make_exchange();
  return *exchange_;
}

std::unique_ptr<exchange::CompressedAllReduce>
CompressedMomentum::make_exchange() const {
  const exchange::CompressedAllReduceOptions options{
      .blocks = model_.block_options,
      .residual_dtype = model_.settings.residual_dtype,
      .keeps_previous = keeps_previous_,
      .runs_early = model_.settings.exchange.during_backward && !model_.groups,
      .early_threads = model_.settings.exchange.num_threads};
  using exchange::CompressedAllReduce;
  auto made = model_.has_given_blocks
                  ? std::make_unique<CompressedAllReduce>(
                        model_.comm, model_.pool, model_.layout.blocks, options,
                        model_.groups.get())
                  : std::make_unique<CompressedAllReduce>(
                        model_.comm, model_.pool, model_.layout.units, options,
                        model_.groups.get());
  made->set_active(active_);
  made->set_observer(model_.observer);
  return made;
}

// The first run finds memory that was never touched.
double CompressedMomentum::time_exchange() const {
  const auto exchange = make_exchange();
  exchange->set_observer(nullptr);
  std::size_t longest = 0;
  for (const exchange::Block& block : exchange->layout().blocks())
    longest = std::max(longest, block.values.size);
  const std::vector<float> zeros(longest);
  double seconds = 0;
  for (int run = 0; run < 2; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    exchange->run(
        [&](std::size_t) { return kernels::SignInput{.values = zeros.data()}; },
        [](std::size_t, kernels::Signs) {});
    seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
  }
  return seconds;
}

double CompressedMomentum::residual_ratio() const {
  const exchange::CompressedAllReduce* const all = exchange_.get();
  if (all == nullptr) return 0;
  double mean = 0;
  for (std::size_t b = 0; b < all->layout().blocks().size(); ++b) {
    if (!all->encodes(b)) continue;
    const double scale = all->mean(b).scale;
    mean += scale * scale *
            static_cast<double>(all->active().count(all->layout(), b));
  }
  const double residual = sum_of_squares(model_.pool, all->worker_error());
  return mean == 0 ? 0 : std::sqrt(residual / mean);
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
  const exchange::Block& block = model_.layout.blocks.blocks()[b];
  const Range& at = block.residual;
  std::vector<float> owed =
      owed_of(debt_.worker.view(), debt_.server.view(), at);
  for (Buffer* const side : {&debt_.worker, &debt_.server})
    set_to_zero(side->view().subview(at.offset, at.size));
  for (std::size_t i = 0; i < at.size; ++i)
    if (!takes_part(block.values.offset + i)) owed[i] = 0;
  return owed;
}

void CompressedMomentum::follow_observer() {
  if (exchange_) exchange_->set_observer(model_.observer);
}

}  // namespace thinwire::optim

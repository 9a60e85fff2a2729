// SPDX-License-Identifier: Apache-2.0
// The sync of 0/1 Adam: u, times the denominator, travels as a momentum would.
#include <algorithm>
#include <utility>

#include "optim/zero_one_adam_impl.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/local_step.h"

namespace thinwire::optim {

using kernels::AdamCoefficients;
using kernels::Signs;

kernels::SignInput ZeroOneAdamImpl::sync_input(
    std::size_t b, ConstView grads, std::span<const AdamCoefficients> c) const {
  kernels::SignInput input = momentum_input(b, grads, c[parts.block_group[b]]);
  const std::size_t at = parts.blocks.blocks()[b].values.offset;
  input.denominator = denominator.as<float>().data() + at;
  if (accumulated) input.accumulated = accumulator.as<float>().data() + at;
  return input;
}

void ZeroOneAdamImpl::sync(View params, View low_precision,
                           const Input& input) {
  the_exchange().run(input, [&](std::size_t b, Signs mean) {
    const Range& at = parts.blocks.blocks()[b].values;
    const std::size_t group = parts.block_group[b];
    if (lrs[group] == 0) {  // stays where it is
      if (!low_precision.empty())
        kernels::convert(params.subview(at.offset, at.size),
                         part_of(low_precision, at));
      return;
    }
    kernels::sync_update(
        mean, active_words(b),
        {.params = params.as<float>().data() + at.offset,
         .origin = origin.as<float>().data() + at.offset,
         .denominator = denominator.as<float>().data() + at.offset,
         .size = at.size,
         .low_precision = part_of(low_precision, at)},
        static_cast<float>(decay[group]));
  });
  mean_lrs = lrs;
  if (some_group_rests())
    merge_momenta();
  else
    keep_momentum_as_signs();
  begin_interval();
}

// b = -lrs m, so m = -b / lrs; before the first sync the mean is m itself.
Signs ZeroOneAdamImpl::mean_momentum(std::size_t b) const {
  Signs mean = exchange->mean(b);
  if (!mean_lrs.empty())
    mean.scale =
        -mean.scale / static_cast<float>(mean_lrs[parts.block_group[b]]);
  return mean;
}

void ZeroOneAdamImpl::begin_interval() {
  accumulated = false;
  lrs.assign(lrs.size(), 0);
  decay.assign(decay.size(), 1);
}

bool ZeroOneAdamImpl::some_group_rests() const {
  return std::any_of(lrs.begin(), lrs.end(),
                     [](double sum) { return sum == 0; });
}

bool ZeroOneAdamImpl::some_group_moved() const {
  return std::any_of(lrs.begin(), lrs.end(),
                     [](double sum) { return sum > 0; });
}

// A group whose learning rate was 0 all the time has no b to take m from.
void ZeroOneAdamImpl::keep_momentum_of_resting_groups(
    ConstView grads, std::span<const AdamCoefficients> c) {
  if (!some_group_rests()) return;
  keep_momentum_as_values();
  for (const GroupRange& r : parts.compressed)
    if (lrs[r.group] == 0)
      kernels::momentum(adam.exp_avg().as<float>().data() + r.range.offset,
                        grads.subview(r.range.offset, r.range.size),
                        c[r.group]);
}

// Such a group does not move either: what residuals gave for it goes back.
void ZeroOneAdamImpl::merge_momenta() {
  float* const m = adam.exp_avg().as<float>().data();
  std::vector<float> returned;
  for (std::size_t b = 0; b < parts.blocks.blocks().size(); ++b) {
    const Range& at = parts.blocks.blocks()[b].values;
    if (lrs[parts.block_group[b]] > 0) {
      kernels::sign_decode(mean_momentum(b), active_words(b), m + at.offset,
                           at.size);
      continue;
    }
    returned.resize(at.size);
    kernels::sign_decode(exchange->mean(b), active_words(b), returned.data(),
                         at.size);
    exchange->add_to_worker_error(b, returned.data(), 1);
  }
  momentum_is_signs = false;
}

// A group of one: what would travel is what it has.
void ZeroOneAdamImpl::sync_alone(View params) {
  for_blocks([&](std::size_t b) {
    const Range& at = parts.blocks.blocks()[b].values;
    const auto sum = static_cast<float>(lrs[parts.block_group[b]]);
    const auto of = [&](Buffer& values) {
      return values.as<float>().subspan(at.offset, at.size);
    };
    const auto p = params.as<float>().subspan(at.offset, at.size);
    std::copy(p.begin(), p.end(), of(origin).begin());
    if (sum == 0) return;
    for (std::size_t i = 0; i < at.size; ++i)
      of(adam.exp_avg())[i] = -(of(accumulator)[i] * of(denominator)[i]) / sum;
  });
  begin_interval();
}

void ZeroOneAdamImpl::synchronize(View params) {
  if (ranks_are_equal()) return;
  if (!compresses()) {
    sync_alone(params);
    return;
  }
  Buffer b = copy_of(accumulator.view());
  const auto d = std::as_const(denominator).as<float>();
  for (std::size_t i = 0; i < b.size(); ++i) b.as<float>()[i] *= d[i];
  if (some_group_rests()) keep_momentum_as_values();
  sync(params, {}, [&](std::size_t block) {
    const std::size_t at = parts.blocks.blocks()[block].values.offset;
    return kernels::SignInput{.values = b.as<float>().data() + at};
  });
}

}  // namespace thinwire::optim

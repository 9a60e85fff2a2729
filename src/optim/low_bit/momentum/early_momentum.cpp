// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/momentum/early_momentum.h"

#include <algorithm>
#include <utility>

#include "core/require.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::optim {

using kernels::kSumChunk;

// A block is guarded by the norm's chunks that cover it, the first of which may
// begin before the bucket.
std::size_t EarlyMomentum::need_of(std::size_t k) const {
  const exchange::BlockLayout& blocks = model_.layout.blocks;
  return model_.block(blocks.buckets()[k].first_block()).offset / kSumChunk *
         kSumChunk;
}

std::vector<Range> EarlyMomentum::buckets() const {
  std::vector<Range> ranges;
  std::size_t begin = 0;
  for (std::size_t k = 1; k <= model_.layout.blocks.buckets().size(); ++k) {
    const std::size_t end =
        k < model_.layout.blocks.buckets().size() ? need_of(k) : model_.size();
    if (end == begin) continue;  // if several buckets end in one chunk
    ranges.push_back({begin, end - begin});
    begin = end;
  }
  return ranges;
}

void EarlyMomentum::begin(View grads, std::int64_t number) {
  grads_ = grads;
  loss_scale_ = gradients_.memory.loss_scale.value_or(1);
  grad_scale_ = gradients_.scale_by_lag(loss_scale_);
  coefficients_ = model_.coefficients(number, grad_scale_);
  ready_.clear();
  momentum_.exchange.begin_early([this](std::size_t b) { return input(b); });
  left_ = model_.layout.blocks.buckets().size();
}

void EarlyMomentum::add(View grads, Range range, std::int64_t number) {
  require(!has_begun() || !ready_.touch(range), "range",
          "apart from what is under way",
          fmt::format("{} of size {}", range.offset, range.size));
  gradients_.measure_early(grads, range);  // throws if the range does not fit
  if (!has_begun()) begin(grads, number);
  ready_.add(range);
  add_complete();
}

void EarlyMomentum::add_complete() {
  const std::vector<Range> missing = ready_.missing(model_.size());
  const std::size_t there_from = missing.empty() ? 0 : missing.back().end();
  while (left_ > 0 && need_of(left_ - 1) >= there_from)
    momentum_.exchange.all().ready(--left_);
}

bool EarlyMomentum::complete(const StepInput& in) {
  require(
      in.grads.data() == grads_.data() && in.grads.dtype() == grads_.dtype(),
      "StepInput.grads", "what reduce() was given since the last step",
      "other memory");
  for (const Range& missing : ready_.missing(model_.size()))
    gradients_.measure_early(grads_, missing);
  ready_.add({0, model_.size()});
  add_complete();
  return in.loss_scale == loss_scale_;
}

void EarlyMomentum::drop() noexcept { momentum_.exchange.drop(); }

// Leaves the gradients unchanged, because they may have to be encoded again.
kernels::SignInput EarlyMomentum::input(std::size_t b) const {
  thread_local GuardedBlock copy;
  kernels::SignInput input = momentum_.form.input(
      b, grads_, coefficients_[model_.layout.block_group[b]]);
  input.grads = denominator_.guarded(b, input.grads, grad_scale_,
                                     gradients_.chunk_squares(), copy);
  return input;
}

}  // namespace thinwire::optim

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "core/set_to_zero.h"
#include "shard/corrected_zero.h"
#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"

// Gradients until the step: whole, or handed over one by one.
namespace thinwire::shard {

std::vector<Range> CorrectedZero::buckets() const {
  std::vector<Range> all;
  for (const auto& section : sections_)
    for (const Bucket& bucket : section->shards().buckets())
      all.push_back(bucket.range);
  std::sort(all.begin(), all.end(),
            [](const Range& a, const Range& b) { return a.offset < b.offset; });
  return all;
}

Section& CorrectedZero::section_of(std::size_t parameter) const {
  for (const auto& section : sections_)
    if (section->holds(parameter)) return *section;
  return *sections_.front();
}

void CorrectedZero::make_sums(ZeroOptimizer::Backward which) {
  if (!which.is_first) return;
  const DType dtype =
      which.is_last ? options.dtype : options.accumulation_dtype;
  const MemoryScope scope(MemoryKind::kGradients);
  if (sums_.size() != layout.size() || sums_.dtype() != dtype)
    sums_ = Buffer(layout.size(), dtype);
}

void CorrectedZero::begin_backward(ZeroOptimizer::Backward which) {
  which_ = which;
  late_ = {};
  if (options.stage == 2) {
    for (const auto& section : sections_)
      section->gradients().begin(which, options.dtype);
    return;
  }
  make_sums(which);
  schedule_.begin();
}

void CorrectedZero::collect(std::size_t index, ConstView gradient) {
  if (options.stage == 2)
    return section_of(index).gradients().collect(index, gradient);
  const Parameter& p = layout.parameters()[index];
  const View sum = sums_.view().subview(p.offset, p.size);
  if (which_.is_first)
    kernels::convert(gradient, sum);
  else
    kernels::accumulate(sum, gradient);
  schedule_.mark_ready(index);
  if (which_.is_last)
    while (const auto b = schedule_.take_complete())
      reduce_early(sums_.view(), schedule_.range(*b));
}

void CorrectedZero::end_backward() {
  if (options.stage == 2) {
    for (const auto& section : sections_) section->gradients().end();
    return;
  }
  if (const auto held_up = schedule_.waiting_for(); held_up && which_.is_last)
    late_.parameter = static_cast<std::int64_t>(*held_up);
  for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
    if (schedule_.is_ready(i) || !which_.is_first) continue;
    const Parameter& p = layout.parameters()[i];
    set_to_zero(sums_.view().subview(p.offset, p.size));
  }
  if (!which_.is_last) return;
  while (const auto b = schedule_.take_any()) {
    late_.elements += schedule_.range(*b).size;
    reduce_early(sums_.view(), schedule_.range(*b));
  }
}

void CorrectedZero::cancel_backward() {
  for (const auto& section : sections_)
    if (section->gradients().has_sent())
      throw Error(ErrorCode::kCommFailure,
                  "cancel_backward: gradients of this window have been sent");
  end_window();
}

ZeroOptimizer::Late CorrectedZero::late() const {
  ZeroOptimizer::Late all = late_;
  for (const auto& section : sections_) {
    const ZeroOptimizer::Late late = section->gradients().late();
    all.elements += late.elements;
    all.parameter = std::max(all.parameter, late.parameter);
  }
  return all;
}

void CorrectedZero::reduce_early(View grads, Range range) {
  std::size_t covered = 0;
  const auto for_buckets = [&](auto&& body) {
    for (const auto& section : sections_) {
      const auto all = section->shards().buckets();
      for (std::size_t b = all.size(); b-- > 0;)
        if (all[b].range.offset >= range.offset &&
            all[b].range.end() <= range.end())
          body(section->gradients(), b, all[b].range.size);
    }
  };
  bool has_left = false;
  for_buckets([&](GradientShard& shard, std::size_t b, std::size_t size) {
    covered += size;
    has_left = has_left || shard.has_left(b);
  });
  if (covered != range.size || range.end() > layout.size() || has_left)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("range must be one of buckets() that has not left, "
                            "or neighbours of them, got {} of size {}",
                            range.offset, range.size));
  for_buckets([&](GradientShard& shard, std::size_t b, std::size_t /*size*/) {
    shard.reduce(grads, b);
  });
}

}  // namespace thinwire::shard

// SPDX-License-Identifier: Apache-2.0
// Gradients until the step: whole, or handed over one by one.
#include <fmt/format.h>

#include <algorithm>

#include "core/set_to_zero.h"
#include "shard/zero_impl.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::shard {

std::vector<Range> ZeroOptimizer::Impl::buckets() const {
  std::vector<Range> all;
  for (const auto& group : groups)
    for (const ShardBucket& bucket : group->shards().buckets())
      all.push_back(bucket.range);
  std::sort(all.begin(), all.end(),
            [](const Range& a, const Range& b) { return a.offset < b.offset; });
  return all;
}

ShardGroup& ZeroOptimizer::Impl::group_of(std::size_t parameter) const {
  for (const auto& group : groups)
    if (group->holds(parameter)) return *group;
  return *groups.front();
}

void ZeroOptimizer::Impl::make_sums() {
  const Backward which = window.backward();
  if (!which.is_first) return;
  const DType dtype =
      which.is_last ? options.dtype : options.accumulation_dtype;
  const MemoryScope scope(MemoryKind::kGradients);
  if (sums.size() != layout.size() || sums.dtype() != dtype)
    sums = Buffer(layout.size(), dtype);
}

void ZeroOptimizer::Impl::begin_backward(Backward which) {
  window.begin(which);
  late_whole = {};
  if (options.stage == 2) {
    for (const auto& group : groups)
      group->gradients().begin(which, options.dtype);
    return;
  }
  make_sums();
  schedule.begin();
}

void ZeroOptimizer::Impl::collect(std::size_t index, ConstView gradient) {
  window.collect(index);
  if (options.stage == 2)
    return group_of(index).gradients().collect(index, gradient);
  const Parameter& p = layout.parameters()[index];
  const View sum = sums.view().subview(p.offset, p.size);
  if (window.backward().is_first)
    kernels::convert(gradient, sum);
  else
    kernels::accumulate(sum, gradient);
  schedule.mark_ready(index);
  if (window.backward().is_last)
    while (const auto b = schedule.take_complete())
      reduce_early(sums.view(), schedule.range(*b));
}

// Whole gradients are in memory that this object may not keep.
void ZeroOptimizer::Impl::collect_all(View grads) {
  window.begin({});
  for (const auto& group : groups) group->gradients().begin({}, grads.dtype());
  for (std::size_t i = layout.parameters().size(); i-- > 0;) {
    const Parameter& p = layout.parameters()[i];
    collect(i, grads.subview(p.offset, p.size));
  }
  end_backward();
}

void ZeroOptimizer::Impl::end_backward() {
  window.end();
  if (options.stage == 2) {
    for (const auto& group : groups) group->gradients().end();
    return;
  }
  const Backward which = window.backward();
  if (const auto held_up = schedule.waiting_for(); held_up && which.is_last)
    late_whole.parameter = static_cast<std::int64_t>(*held_up);
  for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
    if (schedule.is_ready(i) || !which.is_first) continue;
    const Parameter& p = layout.parameters()[i];
    set_to_zero(sums.view().subview(p.offset, p.size));
  }
  if (!which.is_last) return;
  while (const auto b = schedule.take_any()) {
    late_whole.elements += schedule.range(*b).size;
    reduce_early(sums.view(), schedule.range(*b));
  }
}

void ZeroOptimizer::Impl::cancel_backward() {
  window.cancel();
  for (const auto& group : groups)
    if (group->gradients().has_sent())
      throw Error(ErrorCode::kCommFailure,
                  "cancel_backward: gradients of this window have been sent");
  end_window();
}

ZeroOptimizer::Late ZeroOptimizer::Impl::late() const {
  Late all = late_whole;
  for (const auto& group : groups) {
    const Late late = group->gradients().late();
    all.elements += late.elements;
    all.parameter = std::max(all.parameter, late.parameter);
  }
  return all;
}

void ZeroOptimizer::Impl::require_same_array(View grads) const {
  require(early.empty() ||
              (early.data() == grads.data() && early.dtype() == grads.dtype()),
          "grads", "the array that has been reduced in part", "another one");
}

void ZeroOptimizer::Impl::reduce_early(View grads, Range range) {
  std::size_t covered = 0;
  const auto for_buckets = [&](auto&& body) {
    for (const auto& group : groups) {
      const auto all = group->shards().buckets();
      for (std::size_t b = all.size(); b-- > 0;)
        if (all[b].range.offset >= range.offset &&
            all[b].range.end() <= range.end())
          body(group->gradients(), b, all[b].range.size);
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

void ZeroOptimizer::Impl::finish(View grads) {
  if (is_finished) return;
  if (grads.empty() && options.stage == 1) grads = sums.view();
  try {
    for (const auto& group : groups)
      group->gradients().finish(options.stage == 1 ? grads : View{});
  } catch (...) {
    // The caller's memory may go: other groups' ranks still write there.
    for (const auto& group : groups) group->gradients().abandon();
    throw;
  }
  is_finished = true;
}

void ZeroOptimizer::Impl::end_window() {
  for (const auto& group : groups) group->gradients().begin_window();
  window.restart();
  early = {};
  late_whole = {};
  is_finished = false;
}

}  // namespace thinwire::shard

// SPDX-License-Identifier: Apache-2.0
#include "exchange/bucket_schedule.h"

#include <algorithm>
#include <utility>

#include "thinwire/kernels/norm.h"

namespace thinwire::exchange {

using kernels::kSumChunk;

std::vector<Range> equal_buckets(std::size_t size,
                                 std::size_t bucket_elements) {
  // Limited to the array's size, so that rounding up cannot overflow.
  const std::size_t most =
      kernels::sum_chunks(std::clamp(bucket_elements, std::size_t{1},
                                     std::max(std::size_t{1}, size))) *
      kSumChunk;
  std::vector<Range> buckets;
  for (std::size_t at = 0; at < size; at += most)
    buckets.push_back({at, std::min(most, size - at)});
  return buckets;
}

BucketSchedule::BucketSchedule(const ParameterLayout& layout,
                               std::vector<Range> buckets)
    : layout_(&layout), buckets_(std::move(buckets)) {
  begin();
}

void BucketSchedule::begin() {
  left_ = buckets_.size();
  pending_.assign(left_, 0);
  ready_.assign(layout_->parameters().size(), false);
  for (std::size_t p = 0; p < ready_.size(); ++p) {
    const Range buckets = buckets_of(p);
    for (std::size_t b = buckets.offset; b < buckets.end(); ++b) ++pending_[b];
  }
}

void BucketSchedule::mark_ready(std::size_t parameter) {
  if (ready_[parameter]) return;
  const Range buckets = buckets_of(parameter);
  for (std::size_t b = buckets.offset; b < buckets.end(); ++b)
    mark_part_ready(parameter, b);
  ready_[parameter] = true;
}

void BucketSchedule::mark_part_ready(std::size_t parameter,
                                     std::size_t bucket) {
  ready_[parameter] = true;
  --pending_[bucket];
}

std::optional<std::size_t> BucketSchedule::take_complete() {
  if (left_ == 0 || pending_[left_ - 1] > 0) return std::nullopt;
  return --left_;
}

std::optional<std::size_t> BucketSchedule::waiting_for() const {
  if (left_ == 0 || pending_[left_ - 1] == 0) return std::nullopt;
  for (std::size_t i = ready_.size(); i-- > 0;) {
    const Range buckets = buckets_of(i);
    if (!ready_[i] && buckets.offset < left_ && buckets.end() >= left_)
      return i;
  }
  return std::nullopt;
}

Range BucketSchedule::buckets_of(std::size_t parameter) const {
  const Parameter& p = layout_->parameters()[parameter];
  if (p.size == 0) return {};
  const auto first = std::partition_point(
      buckets_.begin(), buckets_.end(),
      [&](const Range& bucket) { return bucket.end() <= p.offset; });
  const auto last = std::partition_point(
      first, buckets_.end(),
      [&](const Range& bucket) { return bucket.offset < p.offset + p.size; });
  return {static_cast<std::size_t>(first - buckets_.begin()),
          static_cast<std::size_t>(last - first)};
}

}  // namespace thinwire::exchange

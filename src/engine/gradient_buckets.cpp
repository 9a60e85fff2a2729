// SPDX-License-Identifier: Apache-2.0
#include "engine/gradient_buckets.h"

#include <algorithm>

#include "thinwire/kernels/norm.h"

namespace thinwire::engine {

GradientBuckets::GradientBuckets(const ParameterLayout& layout,
                                 std::size_t bucket_elements)
    : layout_(layout),
      // No larger than what there is, so that rounding up cannot overflow.
      bucket_elements_(kernels::sum_chunks(std::clamp(
                           bucket_elements, std::size_t{1},
                           std::max(std::size_t{1}, layout.size()))) *
                       kernels::kSumChunk) {
  begin();
}

void GradientBuckets::begin() {
  left_ = (layout_.size() + bucket_elements_ - 1) / bucket_elements_;
  pending_.assign(left_, 0);
  const auto parameters = layout_.parameters();
  ready_.assign(parameters.size(), false);
  for (const Parameter& p : parameters) {
    const Range buckets = buckets_of(p);
    for (std::size_t b = buckets.offset; b < buckets.end(); ++b) ++pending_[b];
  }
}

void GradientBuckets::mark_ready(std::size_t parameter) {
  if (ready_[parameter]) return;
  ready_[parameter] = true;
  const Range buckets = buckets_of(layout_.parameters()[parameter]);
  for (std::size_t b = buckets.offset; b < buckets.end(); ++b) --pending_[b];
}

std::optional<Range> GradientBuckets::take_complete() {
  if (left_ == 0 || pending_[left_ - 1] > 0) return std::nullopt;
  return take_any();
}

std::optional<Range> GradientBuckets::take_any() {
  if (left_ == 0) return std::nullopt;
  return range(--left_);
}

std::optional<std::size_t> GradientBuckets::waiting_for() const {
  if (left_ == 0 || pending_[left_ - 1] == 0) return std::nullopt;
  for (std::size_t i = ready_.size(); i-- > 0;) {
    const Range buckets = buckets_of(layout_.parameters()[i]);
    if (!ready_[i] && buckets.offset < left_ && buckets.end() >= left_)
      return i;
  }
  return std::nullopt;
}

Range GradientBuckets::range(std::size_t bucket) const {
  const std::size_t begin = bucket * bucket_elements_;
  return {begin, std::min(bucket_elements_, layout_.size() - begin)};
}

Range GradientBuckets::buckets_of(const Parameter& p) const {
  if (p.size == 0) return {};
  const std::size_t first = p.offset / bucket_elements_;
  const std::size_t last = (p.offset + p.size - 1) / bucket_elements_;
  return {first, last - first + 1};
}

}  // namespace thinwire::engine

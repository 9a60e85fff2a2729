// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/set_to_zero.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/memory.h"
#include "thinwire/exchange/gradient_window.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/zero/shard_layout.h"

namespace thinwire::zero {

/// Buckets that are filled with gradients one by one and reuse their memory. If
/// gradients arrive in the order of backward, this is the memory of one bucket.
class FillingBuckets {
 public:
  explicit FillingBuckets(const ShardLayout& shards)
      : shards_(shards), filling_(shards.buckets().size()) {}

  /// Allocates the memory of a window before its first gradient.
  void begin(DType gradients) {
    dtype_ = gradients;
    if (!filling_.empty()) free_.push_back(std::move(memory_of(0)));
  }
  void store(const exchange::GradientPart& part) {
    const Range& bucket = shards_.buckets()[part.bucket].range;
    const View to =
        memory_of(part.bucket)
            .view()
            .subview(part.range.offset - bucket.offset, part.range.size);
    if (part.values.empty())
      set_to_zero(to);
    else
      kernels::convert(part.values, to);
  }
  [[nodiscard]] ConstView values(std::size_t b) const {
    return filling_[b].view().subview(0, shards_.buckets()[b].range.size);
  }
  /// Moves out the memory of values(), which keeps its address.
  [[nodiscard]] Buffer take(std::size_t b) { return std::move(filling_[b]); }
  void give_back(Buffer&& memory) {
    if (!memory.empty()) free_.push_back(std::move(memory));
  }
  void clear() {
    for (Buffer& memory : filling_) give_back(std::move(memory));
    if (free_.size() > 1) free_.resize(1);
  }

 private:
  [[nodiscard]] Buffer& memory_of(std::size_t b) {
    Buffer& memory = filling_[b];
    if (!memory.empty()) return memory;
    if (!free_.empty()) {
      memory = std::move(free_.back());
      free_.pop_back();
      if (memory.dtype() == dtype_) return memory;
    }
    const MemoryScope scope(MemoryKind::kBuckets);
    std::size_t largest = 0;
    for (const ShardBucket& bucket : shards_.buckets())
      largest = std::max(largest, bucket.range.size);
    memory = Buffer(largest, dtype_);
    return memory;
  }

  const ShardLayout& shards_;
  DType dtype_ = DType::kFloat32;
  std::vector<Buffer> filling_;  // per bucket
  std::vector<Buffer> free_;
};

}  // namespace thinwire::zero

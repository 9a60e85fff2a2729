// SPDX-License-Identifier: Apache-2.0
// Low-bit gradients: stage 1 or 2, flat or hierarchical.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/set_to_zero.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/memory.h"
#include "thinwire/exchange/gradient_window.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/zero/shard_layout.h"
#include "zero/wire/gradients.h"

namespace thinwire::zero {

/// Buckets that are filled with gradients one by one. Memory is reused. If
/// gradients arrive in the order of backward, it is that of one bucket.
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
  /// Moves out the memory of values(), whose address does not change.
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

// ---- flat

/// Gradients of stage 1 with flat ranks. They are encoded in place.
class FlatWhole final : public EncodedGradients {
 public:
  using EncodedGradients::EncodedGradients;

  bool send(std::size_t b, View whole) override {
    encode_and_send(
        b, whole.subview(bucket(b).range.offset, bucket(b).range.size));
    return true;
  }
};

/// Gradients of stage 2 with flat ranks. If a window has one backward, they
/// fill buckets. Otherwise each is added to the residuals at once.
class FlatOneByOne final : public EncodedGradients {
 public:
  explicit FlatOneByOne(const ReductionSettings& settings)
      : EncodedGradients(settings), filling_(settings.shards) {}

  void begin(exchange::Backward which, DType gradients) override {
    EncodedGradients::begin(which, gradients);
    if (!adds_up()) filling_.begin(gradients);
  }
  void store(const exchange::GradientPart& part) override {
    if (adds_up())
      add(part.bucket, part.range, part.values);
    else
      filling_.store(part);
  }
  bool send(std::size_t b, View /*whole*/) override {
    if (!is_last()) return false;
    encode_and_send(b, adds_up() ? ConstView() : filling_.values(b));
    filling_.give_back(filling_.take(b));
    return true;
  }
  void begin_window() override {
    EncodedGradients::begin_window();
    filling_.clear();
  }

 private:
  FillingBuckets filling_;
};

// ---- hierarchical

/// Gradients with hierarchical ranks. Each host first forms the mean of its
/// ranks bucket by bucket, in fp32 and unrounded. A local rank gets the part
/// that the ranks of the same place own on all hosts, and exchanges records
/// with these.
class HierarchicalGradients : public EncodedGradients {
 public:
  explicit HierarchicalGradients(const ReductionSettings& settings)
      : HierarchicalGradients(settings, comm::split_by_host(settings.comm)) {}
  ~HierarchicalGradients() override { HierarchicalGradients::abandon(); }

  void begin(exchange::Backward which, DType gradients) override;
  void finish() override;
  void abandon() noexcept override;

 protected:
  /// Begins the mean of a bucket. Collective in the host, queued. `values` lie
  /// in `memory`, or in an array that outlives the window.
  void form_mean(std::size_t bucket, ConstView values, Buffer&& memory = {});

 private:
  struct Slot {
    Buffer mean;
    Buffer memory;
    std::size_t bucket = 0;
    comm::Work work;
  };

  HierarchicalGradients(const ReductionSettings& settings,
                        comm::HostGroups groups);
  virtual void give_back(Buffer&& /*memory*/) {}
  void take_oldest();

  const comm::HostGroups groups_;
  std::array<Slot, kSlots> slots_;
  std::size_t first_ = 0;  // oldest of `count_` pending slots
  std::size_t count_ = 0;
};

/// Gradients of stage 1 with hierarchical ranks. Means are formed in place.
class HierarchicalWhole final : public HierarchicalGradients {
 public:
  using HierarchicalGradients::HierarchicalGradients;

  bool send(std::size_t b, View whole) override {
    form_mean(b, whole.subview(bucket(b).range.offset, bucket(b).range.size));
    return true;
  }
};

/// Gradients of stage 2 with hierarchical ranks. They fill buckets in every
/// backward, and means are formed of these.
class HierarchicalOneByOne final : public HierarchicalGradients {
 public:
  explicit HierarchicalOneByOne(const ReductionSettings& settings)
      : HierarchicalGradients(settings), filling_(settings.shards) {}

  void begin(exchange::Backward which, DType gradients) override {
    HierarchicalGradients::begin(which, gradients);
    filling_.begin(gradients);
  }
  void store(const exchange::GradientPart& part) override {
    filling_.store(part);
  }
  bool send(std::size_t b, View /*whole*/) override {
    const ConstView values = filling_.values(b);
    form_mean(b, values, filling_.take(b));
    return true;
  }
  void begin_window() override {
    HierarchicalGradients::begin_window();
    filling_.clear();
  }

 private:
  void give_back(Buffer&& memory) override {
    filling_.give_back(std::move(memory));
  }

  FillingBuckets filling_;
};

}  // namespace thinwire::zero

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "thinwire/comm/hosts.h"
#include "thinwire/core/buffer.h"
#include "zero/wire/filling_buckets.h"
#include "zero/wire/gradients.h"

namespace thinwire::zero {

/// Gradients with hierarchical ranks. Each host first forms the mean of its
/// ranks bucket by bucket, in fp32 and unrounded. A local rank gets the part
/// that the ranks of the same place own on all hosts, and exchanges records
/// with these.
class HierarchicalGradients : public LowBitGradients {
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

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

/// Low-bit gradients in a hierarchical exchange. The mean over the ranks of a
/// host is formed first, in fp32 and unrounded, bucket by bucket. Each local
/// rank gets the mean of what the ranks of its number own on all hosts, and
/// exchanges records with these.
class HierarchicalGradients : public LowBitGradients {
 public:
  explicit HierarchicalGradients(const ReductionSettings& settings)
      : HierarchicalGradients(settings, comm::split_by_host(settings.comm)) {}
  ~HierarchicalGradients() override { HierarchicalGradients::abandon(); }

  void begin(exchange::Backward which, DType gradients) override;
  void finish() override;
  void abandon() noexcept override;

 protected:
  /// Forms the host's mean of a bucket's `values`, in `memory` or in an array
  /// that stays. Collective in the host, queued.
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
  std::size_t first_ = 0;  // the oldest one of `count_`
  std::size_t count_ = 0;
};

/// Stage 1, hierarchical. Hosts' means are formed of gradients in place.
class HierarchicalWhole final : public HierarchicalGradients {
 public:
  using HierarchicalGradients::HierarchicalGradients;

  bool send(std::size_t b, View whole) override {
    form_mean(b, whole.subview(bucket(b).range.offset, bucket(b).range.size));
    return true;
  }
};

/// Stage 2, hierarchical. Gradients fill buckets in every backward, and hosts'
/// means are formed of these.
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

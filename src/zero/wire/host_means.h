// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/zero/shard_layout.h"

namespace thinwire::zero {

/// Gradients of the ranks of one host on their way to its mean, in fp32 and not
/// rounded, bucket by bucket: each local rank gets that of what the ranks of
/// its number own on all hosts.
class HostMeans {
 public:
  /// `inside` is the host's group; all references outlive this object.
  HostMeans(comm::Communicator& inside, const ShardLayout& shards,
            const comm::Hosts& hosts, bool average);
  ~HostMeans() { abandon(); }
  HostMeans(const HostMeans&) = delete;
  HostMeans& operator=(const HostMeans&) = delete;

  /// Of the flat array: what this local rank gets of a bucket.
  [[nodiscard]] Range own_part(std::size_t bucket) const {
    return part(bucket, hosts_.local_rank);
  }

  [[nodiscard]] bool is_full() const noexcept { return count_ == kSlots; }
  [[nodiscard]] bool is_empty() const noexcept { return count_ == 0; }
  /// Collective in the host, queued: `values` are the bucket's, in `kept` or in
  /// memory that stays. Not if is_full().
  void queue(std::size_t bucket, ConstView values, Buffer&& kept);

  struct Mean {
    std::size_t bucket = 0;
    ConstView values{};  ///< Of own_part(), until the next queue() but one.
    Buffer kept{};
  };
  /// The oldest one. Not if is_empty().
  [[nodiscard]] Mean wait();
  /// Waits for all; ignores errors.
  void abandon() noexcept;

 private:
  static constexpr std::size_t kSlots = 2;
  struct Slot {
    Buffer means;
    Buffer kept;
    std::size_t bucket = 0;
    comm::Work work;
  };

  [[nodiscard]] Range part(std::size_t bucket, int local_rank) const;

  comm::Communicator& inside_;
  const ShardLayout& shards_;
  const comm::Hosts& hosts_;
  const comm::ReduceOp op_;
  std::array<Slot, kSlots> slots_;
  std::size_t first_ = 0;  // the oldest one of `count_`
  std::size_t count_ = 0;
};

}  // namespace thinwire::zero

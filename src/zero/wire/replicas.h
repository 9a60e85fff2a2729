// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "exchange/record_route.h"
#include "optim/exact_exchange.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/block_layout.h"
#include "thinwire/zero/shard_layout.h"

namespace thinwire::zero {

/// Parameters of one group of ranks, on their way from their owners, who have
/// masters, to the replicas that all ranks compute with. Per block, w the
/// masters rounded to the replicas' dtype:
///   owner  c = w - replica,  q of c;   everybody  replica = replica + q * step
/// What is left over stays in the difference.
class LowBitReplicas {
 public:
  /// All references outlive this object.
  LowBitReplicas(comm::Communicator& comm, const ShardLayout& shards,
                 std::span<const Range> units, int bits, View replicas);
  /// Waits for what is under way: its memory goes with this object.
  ~LowBitReplicas();
  LowBitReplicas(const LowBitReplicas&) = delete;
  LowBitReplicas& operator=(const LowBitReplicas&) = delete;

  [[nodiscard]] int bits() const noexcept { return bits_; }

  /// Collective, queued: `masters` are those of this rank's piece of the
  /// bucket. Takes what has come of earlier buckets.
  void send(std::size_t bucket, ConstView masters, ThreadPool& pool,
            optim::StepMeter& meter);
  /// Waits for all buckets, and takes them.
  void finish(ThreadPool& pool, optim::StepMeter& meter);
  /// How many buckets of this step have been taken, the first ones first.
  [[nodiscard]] std::size_t taken() const noexcept { return taken_; }

 private:
  // A bucket on its way.
  struct Slot {
    Buffer records;
    const exchange::Bucket* bucket = nullptr;  // null: free
    comm::Work work;
  };

  void encode(Slot& slot, ConstView masters, std::size_t begin,
              ThreadPool& pool);
  void take(Slot& slot, ThreadPool& pool, optim::StepMeter& meter);

  comm::Communicator& comm_;
  const ShardLayout& shards_;
  const int bits_;
  const View replicas_;
  const exchange::BlockLayout blocks_;
  const exchange::RecordRoute route_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;  // the slot that is sent longest ago
  std::size_t taken_ = 0;
};

}  // namespace thinwire::zero

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "exchange/records/record_route.h"
#include "optim/step_pieces.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/block_layout.h"
#include "thinwire/zero/shard_layout.h"

namespace thinwire::zero {

/// Parameters of one group of ranks on the way from their owners, which have
/// masters, to the replicas that all ranks compute with. Per block, with w the
/// masters rounded to the replicas' dtype:
///   owner  c = w - replica,  q of c;   all  replica = replica + q * step
/// The next difference contains what rounding takes.
class LowBitReplicas {
 public:
  /// All references must outlive this object.
  LowBitReplicas(comm::Communicator& comm, const ShardLayout& shards,
                 std::span<const Range> units, int bits, View replicas);
  /// Blocks until nothing is in flight, as its memory is freed.
  ~LowBitReplicas();
  LowBitReplicas(const LowBitReplicas&) = delete;
  LowBitReplicas& operator=(const LowBitReplicas&) = delete;

  [[nodiscard]] int bits() const noexcept { return bits_; }

  /// Sends the `masters` of this rank's piece of the bucket, and takes earlier
  /// buckets that have arrived. Collective, queued.
  void send(std::size_t bucket, ConstView masters, ThreadPool& pool,
            optim::StepMeter& meter);
  /// Waits for all buckets and takes them.
  void finish(ThreadPool& pool, optim::StepMeter& meter);

 private:
  // A bucket in flight.
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
};

}  // namespace thinwire::zero

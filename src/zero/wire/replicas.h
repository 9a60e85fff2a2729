// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "optim/step_pieces.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/block_layout.h"
#include "thinwire/zero/shard_layout.h"
#include "zero/wire/record_route.h"

namespace thinwire::zero {

/// Low-bit exchange of one group's parameters, from their owners, which have
/// the masters, to the replicas with which all ranks compute. For each block, w
/// is the masters rounded to the replicas' dtype:
///   owner  c = w - replica,  q of c;   all ranks  replica = replica + q * step
/// The remainder stays in the next difference.
class LowBitReplicas {
 public:
  /// All references must outlive this object.
  LowBitReplicas(comm::Communicator& comm, const ShardLayout& shards,
                 std::span<const Range> units, int bits, View replicas);
  /// Waits for pending exchanges, which use the memory of this object.
  ~LowBitReplicas();
  LowBitReplicas(const LowBitReplicas&) = delete;
  LowBitReplicas& operator=(const LowBitReplicas&) = delete;

  [[nodiscard]] int bits() const noexcept { return bits_; }

  /// Sends this rank's piece of a bucket, whose masters are `masters`, and
  /// decodes what has arrived of earlier buckets. Collective, queued.
  void send(std::size_t bucket, ConstView masters, ThreadPool& pool,
            optim::StepMeter& meter);
  /// Waits for all buckets, and decodes them.
  void finish(ThreadPool& pool, optim::StepMeter& meter);
  /// How many buckets of this step have been taken, the first ones first.
  [[nodiscard]] std::size_t taken() const noexcept { return taken_; }

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
  const RecordRoute route_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;  // the oldest slot
  std::size_t taken_ = 0;
};

}  // namespace thinwire::zero

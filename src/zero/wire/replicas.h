// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "exchange/codec/codec.h"
#include "exchange/pipeline/pipeline.h"
#include "optim/step_pieces.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/block_layout.h"
#include "thinwire/zero/shard_layout.h"

namespace thinwire::zero {

/// Sends one group's parameters in low-bit form from the owners, which have the
/// masters, to the replicas with which all ranks compute. For each block, w is
/// the masters rounded to the replicas' dtype:
///  owner  c = w - replica,  q of c;   all ranks  replica = replica + q * step
/// The remainder is part of the next difference.
class Replicas {
 public:
  /// All references must outlive this object.
  Replicas(comm::Communicator& comm, const ShardLayout& shards,
           std::span<const Range> units, int bits, View replicas,
           ThreadPool& pool);

  [[nodiscard]] int bits() const noexcept { return bits_; }

  /// Sends this rank's piece of a bucket, whose masters are `masters`, and
  /// decodes the pieces of earlier buckets that have arrived. Collective,
  /// queued.
  void send(std::size_t bucket, ConstView masters, optim::StepMeter& meter);
  /// Waits for all buckets and decodes them.
  void finish(optim::StepMeter& meter);
  /// Returns the number of buckets, from the first on, that this step has
  /// decoded.
  [[nodiscard]] std::size_t taken() const noexcept { return taken_; }

 private:
  void encode(std::size_t block, std::uint8_t* record) const;

  const std::size_t rank_;
  const ShardLayout& shards_;
  const int bits_;
  const exchange::ValueCodec& codec_;
  const View replicas_;
  const exchange::BlockLayout blocks_;
  ConstView masters_;              // of the bucket that is being encoded
  std::size_t masters_begin_ = 0;  // index of their first element
  std::size_t taken_ = 0;
  exchange::Pipeline pipeline_;
};

}  // namespace thinwire::zero

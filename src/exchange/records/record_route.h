// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

/// The way of one bucket's records through the ranks: from all of them to the
/// owners of their blocks, or from the owners to all. It moves bytes without
/// reading them. Block::server stands for the owner.
class RecordRoute {
 public:
  /// Both references must outlive it. `owners[s]` is the rank that server s
  /// stands for.
  RecordRoute(comm::Communicator& comm, const BlockLayout& layout,
              std::span<const int> owners);

  [[nodiscard]] const BlockLayout& layout() const noexcept { return layout_; }
  /// Returns the server that this rank is.
  [[nodiscard]] std::size_t own_server() const noexcept { return own_; }
  /// Returns the blocks of the bucket that this rank owns.
  [[nodiscard]] Range owned_of(const Bucket& bucket) const;

  /// Return memory for any bucket's records, and for the records that all ranks
  /// send to this one.
  [[nodiscard]] Buffer make_records() const;
  [[nodiscard]] Buffer make_received() const;
  /// Returns the record of a block of `bucket` in make_records().
  [[nodiscard]] std::uint8_t* record(Buffer& records, const Bucket& bucket,
                                     std::size_t block) const;

  /// Sends every owner the records of its blocks; it receives one rank's after
  /// the other's, as Received has them. The memory is that of the functions
  /// above, and servers must be the ranks in their order. Collective, queued.
  [[nodiscard]] comm::Work queue_to_owners(const Bucket& bucket,
                                           Buffer& records,
                                           Buffer& received) const;
  /// Sends the `records` of this rank's own blocks, and receives all.
  /// Collective, queued.
  [[nodiscard]] comm::Work queue_from_owners(const Bucket& bucket,
                                             Buffer& records) const;

 private:
  [[nodiscard]] View all_of(const Bucket& bucket, Buffer& records) const;

  comm::Communicator& comm_;
  const BlockLayout& layout_;
  std::vector<int> owners_;
  std::size_t own_ = 0;  // the server that this rank is
};

}  // namespace thinwire::exchange

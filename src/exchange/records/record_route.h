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
/// owners of their blocks, or from the owners to all. It moves bytes and does
/// not know what they say. Block::server stands for the owner.
class RecordRoute {
 public:
  /// Both must outlive it. `owners[s]` is the rank that server s stands for.
  RecordRoute(comm::Communicator& comm, const BlockLayout& layout,
              std::span<const int> owners);

  [[nodiscard]] const BlockLayout& layout() const noexcept { return layout_; }
  /// The server that this rank is.
  [[nodiscard]] std::size_t own_server() const noexcept { return own_; }
  /// Blocks of the bucket that this rank owns.
  [[nodiscard]] Range owned_of(const Bucket& bucket) const;

  /// Memory for any bucket's records, and for what all ranks send to this one.
  [[nodiscard]] Buffer make_records() const;
  [[nodiscard]] Buffer make_received() const;
  /// Where a block of `bucket` has its record in make_records().
  [[nodiscard]] std::uint8_t* record(Buffer& records, const Bucket& bucket,
                                     std::size_t block) const;

  /// Collective, queued: every owner receives the records of its blocks, one
  /// rank's after the other's, as Received has them. Memory as made above. Only
  /// where servers are the ranks in their order.
  [[nodiscard]] comm::Work queue_to_owners(const Bucket& bucket,
                                           Buffer& records,
                                           Buffer& received) const;
  /// Collective, queued: `records` has those of this rank's own blocks, and
  /// gets all.
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

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

/// Which of a bucket's chunks a rank has to do with. Local rank l of host h, of
/// H hosts, is at place l H + h, and the servers of a layout are places: what
/// the ranks with one l exchange between hosts, a piece, is one range. Flat:
/// places are ranks, and a bucket is one piece.
struct Places {
  /// `groups` is null where flat.
  Places(const comm::Communicator& comm, const comm::HostGroups* groups);

  std::size_t first;    ///< Of this rank's piece, ...
  std::size_t workers;  ///< ... which has this many: hosts, or ranks.
  std::size_t own;      ///< What this rank serves.

  [[nodiscard]] std::size_t end() const { return first + workers; }
  [[nodiscard]] bool has(const Block& block) const {
    const auto server = static_cast<std::size_t>(block.server);
    return first <= server && server < end();
  }
  /// Blocks of this rank's piece, and those of it that it serves.
  [[nodiscard]] Range piece_of(const Bucket& bucket) const {
    return blocks_between(bucket, first, end());
  }
  [[nodiscard]] Range served_of(const Bucket& bucket) const {
    return blocks_between(bucket, own, own + 1);
  }

 private:
  [[nodiscard]] static Range blocks_between(const Bucket& bucket,
                                            std::size_t begin,
                                            std::size_t end) {
    return {bucket.server_begin[begin],
            bucket.server_begin[end] - bucket.server_begin[begin]};
  }
};

}  // namespace thinwire::exchange

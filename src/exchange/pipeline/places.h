// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

/// Returns the groups of a hierarchical exchange, or null if hosts are flat.
/// Collective.
[[nodiscard]] inline std::unique_ptr<const comm::HostGroups> groups_unless_flat(
    comm::Communicator& comm) {
  if (comm.hosts().is_flat()) return nullptr;
  return std::make_unique<const comm::HostGroups>(comm::split_by_host(comm));
}

/// The chunks of a bucket that a rank encodes and serves. Local rank l of host
/// h, among H hosts, is at place l H + h, and a layout's servers are places.
/// Ranks with the same l therefore exchange one range between hosts, which is
/// their piece. If flat, places are ranks, and a bucket is one piece.
struct Places {
  /// `groups` is null if hosts are flat.
  Places(const comm::Communicator& comm, const comm::HostGroups* groups)
      : first(0),
        workers(static_cast<std::size_t>(comm.size())),
        own(static_cast<std::size_t>(comm.rank())) {
    if (groups == nullptr) return;
    workers = static_cast<std::size_t>(groups->between->size());
    first = static_cast<std::size_t>(groups->inside->rank()) * workers;
    own = first + static_cast<std::size_t>(groups->between->rank());
  }

  std::size_t first;    ///< First place of this rank's piece.
  std::size_t workers;  ///< Places of the piece: hosts, or ranks if flat.
  std::size_t own;      ///< The place that this rank serves.

  [[nodiscard]] std::size_t end() const { return first + workers; }
  [[nodiscard]] bool has(const Block& block) const {
    const auto server = static_cast<std::size_t>(block.server);
    return first <= server && server < end();
  }
  /// Return the blocks of this rank's piece, and the blocks in it that it
  /// serves.
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

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "thinwire/comm/transport.h"

namespace thinwire::comm {

/// Returns on all ranks the values `own` of every rank, in rank order.
/// Transports use it in split().
template <class T>
std::vector<T> gather_values(Transport& transport, const T& own,
                             const Operation& operation) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> values(static_cast<std::size_t>(transport.size()));
  std::vector<SendMessage> sends;
  std::vector<RecvMessage> receives;
  for (int peer = 0; peer < transport.size(); ++peer) {
    T& value = values[static_cast<std::size_t>(peer)];
    if (peer == transport.rank()) {
      value = own;
    } else {
      sends.push_back({peer, &own, sizeof own});
      receives.push_back({peer, &value, sizeof value});
    }
  }
  transport.exchange(sends, receives, operation);
  return values;
}

/// A rank's choice when a group is split.
struct Membership {
  int color = 0;
  int key = 0;
};

/// Returns the parent group's ranks that chose `color`, ordered by key, then by
/// rank.
inline std::vector<int> members_of(const std::vector<Membership>& all,
                                   int color) {
  std::vector<int> members;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].color == color) members.push_back(static_cast<int>(rank));
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return all[static_cast<std::size_t>(a)].key <
           all[static_cast<std::size_t>(b)].key;
  });
  return members;
}

}  // namespace thinwire::comm

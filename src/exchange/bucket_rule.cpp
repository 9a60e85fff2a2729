// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/bucket_rule.h"

#include <algorithm>

namespace thinwire::exchange {

std::size_t bucket_rule(std::size_t elements, int ranks, int bits) noexcept {
  constexpr std::size_t kMessageBits = std::size_t{16} * 1024 * 8;
  const std::size_t least = std::size_t{1} << (bits == 16 ? 22 : 20);
  const std::size_t by_messages = static_cast<std::size_t>(ranks) *
                                  kMessageBits / static_cast<std::size_t>(bits);
  return std::max(least,
                  std::min(std::max(by_messages, elements / 32), elements / 4));
}

std::size_t bucket_elements(std::size_t chosen, std::size_t elements,
                            const comm::Hosts& hosts, int bits) noexcept {
  if (chosen != 0) return chosen;
  return bucket_rule(elements, hosts.size * hosts.ranks_per_host, bits);
}

}  // namespace thinwire::exchange

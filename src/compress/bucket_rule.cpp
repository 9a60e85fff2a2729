// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/bucket_rule.h"

#include <algorithm>

namespace thinwire::compress {

std::size_t bucket_rule(std::size_t elements, int peers, int bits) noexcept {
  constexpr std::size_t kMessageBits = std::size_t{16} * 1024 * 8;
  const std::size_t least = std::size_t{1} << (bits == 16 ? 22 : 20);
  const std::size_t by_messages = static_cast<std::size_t>(peers) *
                                  kMessageBits / static_cast<std::size_t>(bits);
  return std::max(least,
                  std::min(std::max(by_messages, elements / 32), elements / 4));
}

std::size_t bucket_elements(std::size_t chosen, std::size_t elements,
                            const comm::Hosts& hosts, int bits) noexcept {
  if (chosen != 0) return chosen;
  const auto inside = static_cast<std::size_t>(hosts.ranks_per_host);
  return inside * bucket_rule(elements / inside, hosts.size, bits);
}

}  // namespace thinwire::compress

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "thinwire/compress/bucket_rule.h"

namespace thinwire::engine {

/// `chosen`, or, where that is 0, elements of ZeRO's buckets, of which an
/// engine has eight or more: small ones let the first ones leave while backward
/// goes on, and take less memory; tiny ones are all latency.
[[nodiscard]] inline std::size_t zero_bucket_elements(std::size_t chosen,
                                                      std::size_t elements,
                                                      const comm::Hosts& hosts,
                                                      int bits) noexcept {
  if (chosen != 0) return chosen;
  constexpr std::size_t kBuckets = 8;
  constexpr std::size_t kSmallest = std::size_t{1} << 16;
  return std::min(std::max(elements / kBuckets, kSmallest),
                  compress::bucket_elements(0, elements, hosts, bits));
}

}  // namespace thinwire::engine

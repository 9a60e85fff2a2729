// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "thinwire/config/config.h"
#include "thinwire/exchange/bucket_rule.h"

namespace thinwire::plan {

/// Returns the largest number of elements in a bucket. Gradients and parameters
/// are sent in the same buckets.
[[nodiscard]] inline std::size_t zero_bucket_bound(
    const config::ZeroConfig& zero) noexcept {
  return static_cast<std::size_t>(
      std::min(zero.reduce_bucket_size, zero.allgather_bucket_size));
}

/// Returns the elements of ZeRO's buckets. This is `chosen` or, if that is 0, a
/// size that gives an engine at least eight buckets. Small buckets are sent
/// earlier during backward and need less memory, but latency dominates tiny
/// ones. The result is at least 1 and otherwise at most `bound`, which is
/// zero_bucket_bound().
[[nodiscard]] inline std::size_t zero_bucket_elements(std::size_t chosen,
                                                      std::size_t bound,
                                                      std::size_t elements,
                                                      const comm::Hosts& hosts,
                                                      int bits) noexcept {
  constexpr std::size_t kBuckets = 8;
  constexpr std::size_t kSmallest = std::size_t{1} << 16;
  const std::size_t size =
      chosen != 0
          ? chosen
          : std::min(std::max(elements / kBuckets, kSmallest),
                     exchange::bucket_elements(0, elements, hosts, bits));
  return std::max<std::size_t>(std::min(size, bound), 1);
}

}  // namespace thinwire::plan

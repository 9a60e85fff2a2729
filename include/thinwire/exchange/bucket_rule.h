// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "thinwire/comm/communicator.h"

namespace thinwire::exchange {

/// How many of `elements` elements travel together, in `bits` bits each, among
/// `ranks` ranks: messages of 16 KiB, but 4 to 32 buckets, and at least 2^20
/// elements in each; 2^22 in 16 bits. Flat or by host: what a rank sends to
/// another one is 1/ranks of a bucket. ranks and bits >= 1. Local.
[[nodiscard]] std::size_t bucket_rule(std::size_t elements, int ranks,
                                      int bits) noexcept;

/// `chosen`, or, where that is 0, the rule. Results do not depend on it. Local.
[[nodiscard]] std::size_t bucket_elements(std::size_t chosen,
                                          std::size_t elements,
                                          const comm::Hosts& hosts,
                                          int bits) noexcept;

}  // namespace thinwire::exchange

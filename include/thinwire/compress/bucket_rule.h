// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "thinwire/comm/communicator.h"

namespace thinwire::compress {

/// How many of `elements` elements travel together, in `bits` bits each, among
/// `peers` ranks of which every one sends to every other: messages of 16 KiB,
/// but 4 to 32 buckets, and at least 2^20 elements in each; 2^22 in 16 bits.
/// peers and bits >= 1. Local.
[[nodiscard]] std::size_t bucket_rule(std::size_t elements, int peers,
                                      int bits) noexcept;

/// `chosen`, or, where that is 0, the rule: by host each of the G ranks of a
/// host has it for its own 1/G of the elements, among as many ranks as there
/// are hosts. Results do not depend on it. Local.
[[nodiscard]] std::size_t bucket_elements(std::size_t chosen,
                                          std::size_t elements,
                                          const comm::Hosts& hosts,
                                          int bits) noexcept;

}  // namespace thinwire::compress

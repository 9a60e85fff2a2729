// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "thinwire/comm/communicator.h"

namespace thinwire::exchange {

/// Returns how many of `elements` elements are sent together, in `bits` bits
/// each, among `ranks` ranks. Messages are 16 KiB long, unless this gives fewer
/// than 4 or more than 32 buckets, or buckets below 2^20 elements (2^22 in 16
/// bits). In flat and hierarchical exchanges, a rank sends 1/ranks of a bucket
/// to each other rank. ranks and bits >= 1. Local.
[[nodiscard]] std::size_t bucket_rule(std::size_t elements, int ranks,
                                      int bits) noexcept;

/// Returns `chosen`, or the rule's number if that is 0. Exchanged results are
/// the same for any number. Local.
[[nodiscard]] std::size_t bucket_elements(std::size_t chosen,
                                          std::size_t elements,
                                          const comm::Hosts& hosts,
                                          int bits) noexcept;

}  // namespace thinwire::exchange

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "thinwire/compress/block_layout.h"
#include "thinwire/engine/planner.h"
#include "thinwire/kernels/norm.h"

/// What the planner's formulas share.
namespace thinwire::engine {

/// Elements of a full block, of a cell.
inline constexpr std::size_t kBlock = kernels::kSumChunk;

/// The ranks of one host; and one rank of each host, which has its part of the
/// card.
[[nodiscard]] Network inside_of(const Network& network);
[[nodiscard]] Network between_of(const Network& network);

/// Of full blocks.
[[nodiscard]] double record_bytes_per_element(int bits);

/// Bits of an element on the wire between hosts; exact averages count as fp32.
[[nodiscard]] int wire_bits(Way way) noexcept;
/// Elements that travel together, of the whole model: the workload's, or the
/// rule's.
[[nodiscard]] double bucket_elements_of(Way way, bool by_host,
                                        const Workload& work,
                                        const Network& network);

}  // namespace thinwire::engine

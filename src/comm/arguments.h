// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/view.h"

/// Checks of Communicator's arguments. Each throws Error(kInvalidArgument) and
/// names the call, the argument, the allowed values and the value given.
namespace thinwire::comm::arguments {

/// Requires a pointer that is not null, unless the view is empty.
void require_memory(std::string_view call, std::string_view argument,
                    ConstView view);
/// Requires that `op` is defined for elements of this dtype.
void require_reducible(std::string_view call, ReduceOp op, DType dtype);
void require_same_dtype(std::string_view call, ConstView input, View output);
/// Requires one dtype, or a float32 output for sums and means of float16 or
/// bfloat16.
void require_same_or_wider(std::string_view call, ReduceOp op, ConstView input,
                           View output);
/// Requires large.size() == world_size * small.size().
void require_multiple(std::string_view call, std::string_view large_name,
                      std::size_t large, std::string_view small_name,
                      std::size_t small, int world_size);
/// Requires one count per rank, with view.size() as their sum.
void require_counts(std::string_view call, std::string_view counts_name,
                    std::span<const std::size_t> counts, int world_size,
                    std::string_view view_name, std::size_t view_size);
/// Requires one piece per rank; together they cover the view without overlap.
void require_pieces(std::string_view call, std::span<const Range> pieces,
                    int world_size, std::string_view view_name,
                    std::size_t view_size);
/// Requires hosts that fit the group and this rank, if given or if `reduction`
/// needs them.
void require_hosts(const CommunicatorOptions& options, int rank,
                   int world_size);
void require_equal(std::string_view call, std::string_view name,
                   std::size_t value, std::string_view wanted_name,
                   std::size_t wanted);
void require_no_overlap(std::string_view call, ConstView input,
                        ConstView output);

}  // namespace thinwire::comm::arguments

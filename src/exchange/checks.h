// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "exchange/records/places.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/dtype.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

/// Throws Error(kInvalidArgument) if the world size is not the communicator's,
/// or the residuals' dtype not fp32 or bf16, or bf16 with a scale per unit.
void require_options(const comm::Communicator& comm,
                     const BlockOptions& options, DType residual_dtype);

/// Throws Error(kInvalidArgument) unless `groups` is null or splits `comm` into
/// hosts, and for groups with a scale per unit.
void require_groups(const comm::Communicator& comm,
                    const comm::HostGroups* groups);

/// Throws Error(kInvalidArgument) if a block reaches past `size` elements.
void require_inside(const BlockLayout& layout, std::size_t size);

/// The lowest rank whose values, those in the blocks of its piece, are not
/// finite, or -1; the same on all ranks. Collective.
[[nodiscard]] int find_nonfinite(comm::Communicator& comm,
                                 const BlockLayout& layout,
                                 const Places& places,
                                 std::span<const float> values);

}  // namespace thinwire::exchange

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "exchange/pipeline/places.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/block_layout.h"
#include "thinwire/exchange/low_bit_mean.h"

namespace thinwire::exchange {

/// Throws Error(kInvalidArgument) unless the world size equals the
/// communicator's and residuals are fp32 or bf16.
void require_options(const comm::Communicator& comm,
                     const BlockOptions& options, DType residual_dtype);

/// Throws Error(kInvalidArgument) if an option is out of range.
void require_options(const LowBitMeanOptions& options);

/// Throws Error(kInvalidArgument) unless gradients may have this dtype.
void require_float(std::string_view name, DType dtype);

/// Throws Error(kInvalidArgument) unless the loss scale is in [2^-126, 2^127].
void require_loss_scale(std::string_view name, double loss_scale);

/// Throws Error(kCorruptCheckpoint) unless a saved residual has this dtype and
/// size.
void require_residual(std::string_view name, ConstView given, DType dtype,
                      std::size_t size);

/// Throws Error(kInvalidArgument) unless `groups` is null or splits `comm` into
/// hosts.
void require_groups(const comm::Communicator& comm,
                    const comm::HostGroups* groups);

/// Throws Error(kInvalidArgument) if a block reaches past `size` elements.
void require_inside(const BlockLayout& layout, std::size_t size);

/// Returns the lowest rank whose values, in the blocks of its piece, are not
/// finite, or -1. The result is the same on all ranks. Collective.
[[nodiscard]] int find_nonfinite(comm::Communicator& comm,
                                 const BlockLayout& layout,
                                 const Places& places,
                                 std::span<const float> values);

}  // namespace thinwire::exchange

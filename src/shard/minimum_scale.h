// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "shard/zero_impl.h"

namespace thinwire::shard {

/// Collective: ends a run whose averaged gradients are not finite at the
/// smallest loss scale. `own`: the first parameter of which this rank has such
/// a gradient; -1. Throws Error(kNonFinite) naming the first of all ranks.
[[noreturn]] void stop_at_minimum_scale(const ZeroOptimizer::Impl& optimizer,
                                        std::int64_t own);

/// An overflow now is to be answered so.
[[nodiscard]] inline bool is_last_chance(const ZeroOptimizer::Impl& optimizer) {
  const precision::LossScaler& scaler = optimizer.scaler;
  return optimizer.scales() && scaler.is_at_minimum() &&
         scaler.options().at_minimum == precision::AtMinimum::kStop;
}

}  // namespace thinwire::shard

// SPDX-License-Identifier: Apache-2.0
#include "shard/minimum_scale.h"

#include <fmt/format.h>

#include "thinwire/core/error.h"

namespace thinwire::shard {

// Whose gradient it was is lost in the sum.
void stop_at_minimum_scale(const ZeroOptimizer::Impl& optimizer,
                           std::int64_t own) {
  std::vector<std::int64_t> all(
      static_cast<std::size_t>(optimizer.comm.size()));
  optimizer.comm.all_gather(std::span(&own, 1), all);
  std::int64_t first = -1;
  for (const std::int64_t index : all)
    if (index >= 0 && (first < 0 || index < first)) first = index;
  std::string where = "in their norm";
  if (first >= 0)
    where = fmt::format(
        "first in '{}'",
        optimizer.layout.parameters()[static_cast<std::size_t>(first)].name);
  throw Error(ErrorCode::kNonFinite,
              fmt::format("the loss scale is at its minimum of {} and averaged "
                          "gradients are still not finite, {}; the last good "
                          "step was {}",
                          optimizer.scaler.options().min_scale, where,
                          optimizer.steps));
}

}  // namespace thinwire::shard

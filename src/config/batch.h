// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "thinwire/config/config.h"

namespace thinwire::config {

/// The sizes as given; see Config.
struct GivenBatch {
  std::optional<std::int64_t> train;
  std::optional<std::int64_t> micro;
  std::optional<std::int64_t> accumulation;
};

/// Config::batch().
[[nodiscard]] BatchSizes resolve_batch(const GivenBatch& given, int world);

}  // namespace thinwire::config

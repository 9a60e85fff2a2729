// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "thinwire/comm/hosts.h"

namespace thinwire::comm {

/// A rank's knowledge of its host.
struct OnHost {
  std::int64_t host = 0;            ///< Equal on ranks that share a host.
  std::int64_t ranks_per_host = 0;  ///< From the variable; 0: not set.
  std::int64_t announced = 0;       ///< From the launcher; 0: unknown.
};

/// find_hosts() of rank `rank`, from what all ranks know: the same result, or
/// Error, on all of them. `variable` names where `announced` comes from.
[[nodiscard]] Hosts hosts_of(std::span<const OnHost> all, int rank,
                             const std::string& variable, WhyFlat& why);

}  // namespace thinwire::comm

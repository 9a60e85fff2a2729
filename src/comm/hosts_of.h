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
  std::int64_t ranks_per_host = 0;  ///< From the variable, or 0 if unset.
  std::int64_t announced = 0;       ///< From the launcher, or 0 if unknown.
};

/// Returns rank `rank`'s hosts from the knowledge of all ranks. All ranks get
/// the same result or Error. `variable` is the name of the variable behind
/// `announced`.
[[nodiscard]] Hosts hosts_of(std::span<const OnHost> all, int rank,
                             const std::string& variable, WhyFlat& why);

}  // namespace thinwire::comm

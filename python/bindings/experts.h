// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "communicator.h"
#include "core/require.h"
#include "thinwire/config/config.h"

namespace thinwire::python {

/// Communicators of groups of experts, which live as long as their users.
using Experts = std::vector<std::shared_ptr<comm::Communicator>>;

/// Writes communicators into the groups of `config`. `given` has pairs of a
/// group's number and its Communicator. Throws Error(kInvalidArgument) if the
/// configuration has no group of this number.
inline Experts take_experts(nb::handle given, config::Config& config) {
  Experts kept;
  for (const nb::handle one : given) {
    const auto group = nb::cast<std::size_t>(one[0]);
    kept.push_back(nb::cast<const CommunicatorHandle&>(one[1]).get());
    std::visit(
        [&](auto& options) {
          if (group >= options.groups.size())
            reject(fmt::format("experts: the configuration has no group {}",
                               group));
          options.groups[group].communicator = kept.back().get();
        },
        config.optimizer);
  }
  return kept;
}

}  // namespace thinwire::python

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"

namespace thinwire::optim {

/// Experts, which are parameters without replicas on all ranks.
struct ExpertGroup {
  std::size_t group = 0;  ///< Group of the layout. All its parameters are
                          ///< experts.
  /// Group of ranks with the same experts. It must outlive the optimizer.
  comm::Communicator* comm = nullptr;
};

/// Returns the groups of the options that name a communicator.
template <class Group>
[[nodiscard]] std::vector<ExpertGroup> expert_groups(
    const std::vector<Group>& groups) {
  std::vector<ExpertGroup> experts;
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (groups[g].communicator != nullptr)
      experts.push_back({g, groups[g].communicator});
  return experts;
}

/// Parameters that the same ranks hold, by index in the layout.
struct HeldParameters {
  comm::Communicator* comm = nullptr;
  std::vector<std::size_t> parameters{};
};
/// Returns the dense parameters, which all ranks of `comm` hold, then the
/// experts of each communicator, in the order of groups.
[[nodiscard]] std::vector<HeldParameters> held_parameters(
    comm::Communicator& comm, const ParameterLayout& layout,
    const std::vector<ExpertGroup>& experts);
/// Returns the number of elements that all ranks hold.
[[nodiscard]] std::size_t dense_size(const ParameterLayout& layout,
                                     const std::vector<ExpertGroup>& experts);

/// Throws Error(kInvalidArgument) unless every group is in the layout, is named
/// once and has a communicator, and some groups are dense.
void require_experts(const ParameterLayout& layout,
                     const std::vector<ExpertGroup>& experts);
/// Calls body() for the experts of each communicator; every rank holds some
/// experts. If body() throws Error(kInvalidArgument) on one rank, all ranks
/// throw. Collective.
void for_experts(comm::Communicator& comm,
                 const std::vector<HeldParameters>& held,
                 const std::function<void(const HeldParameters&)>& body);
/// Checks that ranks agree, like comm::require_same(). Ranks that hold the same
/// parameters must agree on their names, shapes and groups. Dense parameters
/// must also have the same places. All ranks of `comm` must pass the same
/// `rest`. Throws Error(kInvalidArgument) on all ranks if they differ.
/// Collective.
void require_same_parameters(comm::Communicator& comm,
                             const ParameterLayout& layout,
                             const std::vector<ExpertGroup>& experts,
                             std::string_view what, std::string_view rest);

}  // namespace thinwire::optim

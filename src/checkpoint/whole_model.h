// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/experts.h"

namespace thinwire::checkpoint {

/// The parameters of all ranks: the dense ones and the experts, of which each
/// rank holds some. Without experts they are the parameters of every rank.
struct WholeModel {
  /// Dense parameters first, then experts, in the order of their ranks.
  ParameterLayout layout;
  std::size_t num_dense = 0;   ///< Parameters.
  std::vector<int> writers{};  ///< For each parameter, the rank that writes it.
  std::vector<std::size_t> places{};  ///< Indices in `layout` of this rank's
                                      ///< parameters.
  /// For each parameter in `layout`, its index on this rank if the rank has it.
  std::vector<std::optional<std::size_t>> own{};
  /// Parameters that this rank holds, the dense ones first.
  std::vector<optim::HeldParameters> held{};
};

/// Returns the whole model. Throws Error(kInvalidArgument) on all ranks if two
/// experts have the same name. Collective.
[[nodiscard]] WholeModel whole_model(comm::Communicator& comm,
                                     const Training& training);

}  // namespace thinwire::checkpoint

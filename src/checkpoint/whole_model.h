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

/// A model of which a rank holds the dense parameters and some experts. Without
/// experts it is what every rank holds.
struct WholeModel {
  /// Dense parameters first, then experts, in the order of the ranks that hold
  /// them.
  ParameterLayout layout;
  std::size_t num_dense = 0;   ///< Parameters.
  std::vector<int> writers{};  ///< Per parameter: the rank that writes it.
  std::vector<std::size_t> places{};  ///< Places of this rank's parameters.
  /// Per parameter of the whole model its number on this rank, if this rank has
  /// it.
  std::vector<std::optional<std::size_t>> own{};
  /// Parameters that this rank holds, the dense ones first.
  std::vector<optim::HeldParameters> held{};
};

/// Collective. Throws Error(kInvalidArgument) on all ranks where two experts
/// have one name.
[[nodiscard]] WholeModel whole_model(comm::Communicator& comm,
                                     const Training& training);

}  // namespace thinwire::checkpoint

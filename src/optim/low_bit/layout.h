// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "optim/step_pieces.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::optim {

/// How one group of parameters is compressed.
struct LowBitGroup {
  std::vector<float> exp_avg_mask;  ///< One value per element, or empty.
  bool stays_exact = false;
};

/// Which parameters are compressed, and how they are cut into blocks.
struct LowBitLayout {
  /// Cuts blocks by `block_options`, unless they are given.
  LowBitLayout(const ParameterLayout& layout,
               std::span<const LowBitGroup> groups,
               const exchange::BlockOptions& block_options,
               std::optional<exchange::BlockLayout> given);

  std::vector<GroupRange> all;         ///< The whole layout.
  std::vector<GroupRange> compressed;  ///< Groups that get compressed.
  std::vector<Range> exact;            ///< The other groups: non_freeze.
  /// The compressed parameters, each a unit: no scale covers two of them.
  std::vector<Range> units;
  exchange::BlockLayout blocks;
  std::vector<std::size_t> block_group;      ///< Per block.
  std::vector<std::size_t> block_parameter;  ///< Per block, its number.
};

}  // namespace thinwire::optim

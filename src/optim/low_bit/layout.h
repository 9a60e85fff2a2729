// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
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
  LowBitLayout(const ParameterLayout& layout,
               std::span<const LowBitGroup> groups,
               const exchange::BlockOptions& block_options);
  /// Uses the given blocks; no group stays exact.
  LowBitLayout(const ParameterLayout& layout, exchange::BlockLayout given);

  std::vector<GroupRange> all;         ///< The whole layout.
  std::vector<GroupRange> compressed;  ///< Groups that get compressed.
  std::vector<Range> exact;            ///< The other groups: non_freeze.
  /// The compressed parameters, each a unit: no scale covers two of them.
  std::vector<Range> units;
  exchange::BlockLayout blocks;
  std::vector<std::size_t> block_group;      ///< Per block.
  std::vector<std::size_t> block_parameter;  ///< Per block, its number.

 private:
  void place_blocks(const ParameterLayout& layout);
};

/// Returns every parameter as a unit of blocks.
[[nodiscard]] std::vector<Range> parameter_units(const ParameterLayout& layout);

}  // namespace thinwire::optim

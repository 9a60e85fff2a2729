// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/update_rule.h"

/// Cells over which norms are computed. Each cell is summed separately, and a
/// parameter's sums are added like those of chunks (kernels/norm.h). A norm
/// therefore has the same bits on ranks with whole arrays and on ranks with
/// shards, which end on the grid.
namespace thinwire::optim {

/// Cuts a range of a flat array at the grid. The range begins on the grid.
[[nodiscard]] std::vector<Range> cut_at_grid(const Range& range);

/// Returns the cells of a layout that begins on the grid, in order. Parameters
/// without elements have none.
[[nodiscard]] std::vector<NormCell> norm_cells(const ParameterLayout& layout);

/// Returns the sums of each of `num_parameters` parameters, over its cells in
/// order.
[[nodiscard]] std::vector<NormSums> parameter_sums(
    std::span<const NormCell> cells, std::span<const NormSums> sums,
    std::size_t num_parameters);

}  // namespace thinwire::optim

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/update_rule.h"

/// The cells over which norms are taken: each is summed by itself, and a
/// parameter's sums are added as those of chunks are (kernels/norm.h). So a
/// norm has the same bits on ranks that hold whole arrays and on those that
/// hold shards, which end on the grid.
namespace thinwire::optim {

/// A range of a flat array that begins on the grid, cut at the grid.
[[nodiscard]] std::vector<Range> cut_at_grid(const Range& range);

/// The cells of a layout that begins on the grid, in order; parameters without
/// elements have none.
[[nodiscard]] std::vector<NormCell> norm_cells(const ParameterLayout& layout);

/// Returns the sums of cells, in order, for each of `num_parameters`
/// parameters.
[[nodiscard]] std::vector<NormSums> parameter_sums(
    std::span<const NormCell> cells, std::span<const NormSums> sums,
    std::size_t num_parameters);

}  // namespace thinwire::optim

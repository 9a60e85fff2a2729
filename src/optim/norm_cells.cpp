// SPDX-License-Identifier: Apache-2.0
#include "optim/norm_cells.h"

#include <algorithm>

#include "thinwire/kernels/norm.h"

namespace thinwire::optim {

std::vector<Range> cut_at_grid(const Range& range) {
  std::vector<Range> cells;
  for (std::size_t at = range.offset; at < range.end();) {
    const std::size_t left = kernels::kSumChunk - at % kernels::kSumChunk;
    cells.push_back({at, std::min(left, range.end() - at)});
    at = cells.back().end();
  }
  return cells;
}

std::vector<NormCell> norm_cells(const ParameterLayout& layout) {
  std::vector<NormCell> cells;
  const auto parameters = layout.parameters();
  cells.reserve(kernels::sum_chunks(layout.size()) + parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i)
    for (const Range& cell :
         cut_at_grid({parameters[i].offset, parameters[i].size}))
      cells.push_back({i, cell});
  return cells;
}

std::vector<NormSums> parameter_sums(std::span<const NormCell> cells,
                                     std::span<const NormSums> sums,
                                     std::size_t num_parameters) {
  std::vector<NormSums> totals(num_parameters);
  for (std::size_t i = 0; i < cells.size();) {
    const std::size_t parameter = cells[i].parameter;
    kernels::ChunkTotal<NormSums> total;
    for (; i < cells.size() && cells[i].parameter == parameter; ++i)
      total.add(cells[i].range.offset / kernels::kSumChunk, sums[i]);
    totals[parameter] = total.total();
  }
  return totals;
}

}  // namespace thinwire::optim

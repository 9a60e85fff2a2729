// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/layout.h"

#include <utility>

namespace thinwire::optim {

LowBitLayout::LowBitLayout(const ParameterLayout& layout,
                           std::span<const LowBitGroup> groups,
                           const exchange::BlockOptions& block_options)
    : all(group_ranges(layout)) {
  const auto stays_exact = [&](std::size_t group) {
    return !groups.empty() && groups[group].stays_exact;
  };
  for (const GroupRange& r : all)
    if (stays_exact(r.group))
      exact.push_back(r.range);
    else
      compressed.push_back(r);
  for (const Parameter& p : layout.parameters())
    if (!stays_exact(p.group)) units.push_back({p.offset, p.size});
  blocks = exchange::BlockLayout(units, block_options);
  place_blocks(layout);
}

LowBitLayout::LowBitLayout(const ParameterLayout& layout,
                           exchange::BlockLayout given)
    : all(group_ranges(layout)),
      compressed(all),
      units(parameter_units(layout)),
      blocks(std::move(given)) {
  place_blocks(layout);
}

std::vector<Range> parameter_units(const ParameterLayout& layout) {
  std::vector<Range> units;
  for (const Parameter& p : layout.parameters())
    units.push_back({p.offset, p.size});
  return units;
}

void LowBitLayout::place_blocks(const ParameterLayout& layout) {
  for (const exchange::Block& block : blocks.blocks()) {
    // Nothing is applied to a block of padding.
    const Parameter* const parameter =
        block.values.size == 0 ? nullptr
                               : &layout.parameter_at(block.values.offset);
    block_group.push_back(parameter == nullptr ? 0 : parameter->group);
    block_parameter.push_back(
        parameter == nullptr
            ? 0
            : static_cast<std::size_t>(parameter - layout.parameters().data()));
  }
}

}  // namespace thinwire::optim
